"""What PyTorch's own step holds (``peak.py``), and what it asks the system for anew (``memory.py``)."""
