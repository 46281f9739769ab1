"""From a module to the graph of its training step; knows torch, and neither implementations nor plans.

``tracing.py`` exports the module and traces forward and backward (``export_errors.py`` says what cannot be),
``joint_graph.py`` reads the trace, and ``canonical_form.py`` brings the graph to the form that everything else
expects. Where torch traces other kernels than eager runs: ``decompositions.py``, ``custom_functions.py``,
``kernel_geometry.py``, ``gradient_sums.py``, ``shared_casts.py``, ``autocast.py``. ``input_geometry.py`` describes
a plan's inputs.
"""

from monet.capture.captured import Captured
from monet.capture.tracing import capture

__all__ = ["Captured", "capture"]
