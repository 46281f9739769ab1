"""What each operator may be run by, and what that costs: a graph in, a catalogue of implementations and a profile out.

``catalogue.py`` decides what is offered for a graph; ``registry.py`` finds an operator's record.

- ``offers/``: what a record is, and what it offers.
- ``families/``: the records, one file or folder a family of operators.
- ``compressed/``: Gist's storages, offered where asked for.
- ``fusion/``: regions of operators, with kernels of PyTorch's compiler.
- ``kernels/``: kernels of the project's own, in C++; ``kernel_names.py`` names what is measured.
- ``measuring/``: seconds and memory requests, through a cache on disk.
- ``estimating/``: the same where nothing is to be run.

``kinds.py`` says which operators are products, attention and convolutions.
``weight_update.py`` runs one parameter's step of ``torch.optim``; ``strides.py`` compares how elements lie in memory.
"""
