"""Runs around the pipeline.

``configured.py`` prepares a configuration's step, ``measured_steps.py`` measures an eager and a planned step in
processes of their own, ``batch_search.py`` plans many batches, and ``provenance.py`` says on what.
"""
