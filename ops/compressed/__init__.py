"""Gist's storages (Jain et al., ISCA 2018, section 4): ``sparse.py`` and ``half.py``, on what ``packing.py`` knows."""
