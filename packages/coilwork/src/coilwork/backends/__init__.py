"""Back ends: each is one registered value that describes devices, generates for them, builds and launches.

`protocol.py` says what a back end is, `registry.py` finds those that are installed, and `cpu.py` and `cuda.py`
are ours, registered under the entry point group `coilwork.backends` like anyone's.
"""
