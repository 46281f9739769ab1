"""Models: from a YAML file to one with inputs, and some to try monet with.

``yaml_document.py`` reads YAML with the place of every value, ``config.py`` has the schema, ``model_loading.py`` calls
what the configuration names (``torchvision_schemas.py`` mends torchvision beside a CPU build of torch), and
``sample_inputs.py`` makes tensors. ``config.py`` is imported before torch is, so nothing is imported here.

``examples.py`` needs torch alone, ``transformers.py`` builds models of transformers with random weights, and
``data.py`` has a little data to train on. ``probes.py`` are for measuring how fast a machine is.
"""
