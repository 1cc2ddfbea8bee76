"""What looks at compiled programs: check mode beside eager, the benchmark of a user's function, the demo, and
measuring.

`check_mode/watch.py` puts checks around a call, `bench/comparison.py` compares backends, `measuring.py`
counts time and memory.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
