"""Models to try monet with: ``examples.py`` needs torch alone, ``transformers.py`` builds models of transformers with
random weights, and ``data.py`` has a little data to train on. ``probes.py`` are for measuring how fast a machine is.
"""
