"""From a module to the graph of its training step; knows torch, and neither implementations nor planning.

``tracing.py`` traces forward and backward: from the module itself where that says all (``direct_trace.py``), else from
the graph that torch.export or Dynamo makes of its forward pass (``forward_graph.py``; ``export_errors.py`` says what
cannot be traced, and where). ``joint_graph.py`` reads the trace, ``rewriting/`` brings the graph to the form that
everything else expects, and ``captured.py`` is the result. Where torch traces other kernels than eager runs:
``decompositions.py``, ``custom_functions.py``, ``value_checks.py``, ``kernel_geometry.py``, and the rewriting of
casts and gradients. ``varying_inputs.py`` has what sizes that vary are traced as.
``autocast.py`` is the precision that a step is captured in. ``kept_captures.py`` keeps captures, by the key of
``model_key.py`` and as the text of ``captured_text.py``, so that a step is traced once. ``input_geometry.py`` writes a
step's inputs into a plan, and makes them again. ``plain_tensors.py`` refuses tensors that are made of others.
"""

from monet.capture.captured import Captured
from monet.capture.kept_captures import capture, capture_once, kept_capture

__all__ = ["Captured", "capture", "capture_once", "kept_capture"]
