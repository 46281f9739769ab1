"""Members of other libraries, for ``bench_zoo.py``."""
