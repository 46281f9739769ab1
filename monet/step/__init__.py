"""What belongs to a step besides the model: ``training_step/`` adds the weight update to its graph, ``second_memory/``
is where tensors can be moved to.
"""
