"""A function of the user's under several backends, each in a process of its own. `comparison.py` is the side
that asks, `worker.py` measures."""
