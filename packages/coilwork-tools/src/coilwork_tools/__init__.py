"""Tools around compiled programs: check mode, benchmark, demo, traces, measurements, fallback search.

Open `check_mode/watch.py` first: it puts checks around a call. `bench/comparison.py` compares back ends,
`explain/trace_folder.py` writes traces, `op_fallback/retries.py` compiles around faults, `measurement.py`
counts time and memory.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
