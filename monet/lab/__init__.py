"""To try and to show: ``sweep/`` plans many budgets and variants, ``experiments/`` measures steps in other processes,
and ``views/`` shows a plan.
"""
