"""The commands of ``monet``, one a module: ``plan.py``, ``sweep.py``, ``order.py``, ``layout.py``, ``show.py``,
``compare.py``, ``trace.py``, ``profile.py``, ``fit.py``, ``run.py`` and ``operators.py``.

``plan.py`` reads a request, which a module of ``planning`` answers and ``rendering.py`` prints. ``options.py`` has the
options that ``plan`` and ``sweep`` share, ``sectioned_help.py`` their help, ``stage_alone.py`` what ``order`` and
``layout`` share, ``exit_status.py`` how every command ends, ``operator_table.py`` what ``monet operators`` prints. A
command imports torch only once there is work for it.
"""
