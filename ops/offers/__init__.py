"""What a record of an operator offers.

``implementation.py`` has the values, ``context.py`` what a record may ask about the graph, ``record.py`` the record
itself and ``sample.py`` the calls that its tests and docs are made from. ``offering.py`` has a catalogue's options.
``generic.py`` is for operators without a record, ``shape_only.py`` for those that read a shape only; ``contents.py``
says on what a kernel is measured.
"""
