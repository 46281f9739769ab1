"""Runs a plan: its steps as generated code over one arena, behind a module or a trainer.

``step_writer.py`` writes a step as lines of Python, ``codegen.py`` makes a forward and a backward function of these,
and ``runner.py`` runs the two over the arena, which is in ``monet/native``. ``planned_step.py`` joins a captured model
with its runner and finds the tensors of a call; ``input_check.py`` refuses a call that is not as planned. On top:
``module.py`` has ``MonetModule``, with ``accumulator.py`` for gradients that add up in the step, and
``arena_group.py`` for several plans of one model; autograd sees it as ``planned_function.py`` has it: as one function,
or inside of ``DistributedDataParallel`` (``parallel.py``) as a chain, whose backward pass (``backward_parts.py``) is
cut where ``gradient_parts.py`` says. ``trainer.py`` has ``Trainer``, for whole steps with their weight updates.
"""
