"""What belongs to a step beside forward and backward.

``accumulation.py`` adds gradients up over micro-batches, ``whole_step.py`` captures a model with its loss,
``updates.py`` appends the optimiser's updates. ``order_graph.py`` makes a whole step's graph to order without a
profile; ``optimizer_trace.py`` records an update for it on the meta device.
"""
