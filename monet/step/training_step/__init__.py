"""What belongs to a training step beside a module's forward and backward pass.

``accumulation.py``: gradients are added to ``.grad`` inside the step, over micro-batches. ``whole_step.py`` captures a
model with its loss and its weight updates as one step, and ``updates.py`` is the part that appends the updates.
``order_graph.py`` turns a captured step and an optimiser into a graph to order without a profile;
``optimizer_trace.py`` records the optimiser's operators for it, on the meta device.
"""
