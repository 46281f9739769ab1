"""From a YAML file to a model with inputs.

``yaml_document.py`` reads YAML with the place of every value, ``config.py`` has the schema, ``model_loading.py``
calls what the configuration names (``torchvision_schemas.py`` mends torchvision beside a CPU build of torch), and
``sample_inputs.py`` makes tensors. ``config.py`` is imported before torch is, so nothing is imported here.
"""
