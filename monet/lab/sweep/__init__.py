"""``monet sweep``: many variants under many budgets, with tables, pictures and a report.

A *cell* is one variant under one budget (``cells.py``). Cells are planned in processes of their own
(``workers.py``, ``cell_planners.py``) or by those of a cluster (``cluster.py``, ``cluster_job.py``), and kept on disk
(``records.py``), so that a sweep that was stopped goes on where it stopped (``run.py``). What comes out is one row a
cell (``rows.py``), pictures and a page.
"""
