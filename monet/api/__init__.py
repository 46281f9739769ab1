"""What a user's program calls, most of it as ``monet.…``.

``functions.py`` has ``plan``, ``apply``, ``optimize`` and the like; ``in_place/`` plans a model in a loop that exists,
``capacity/`` answers whether a step fits, ``guided/`` places steps that no graph captures, and ``compile_backend.py``
is the backend of ``torch.compile``.
"""
