"""A function of the user's under several back ends, each in a process of its own.

Open `comparison.py` first: the side that asks. `worker.py` measures, `command.py` is the command.
"""
