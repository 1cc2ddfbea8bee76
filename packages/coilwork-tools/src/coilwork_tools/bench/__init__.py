"""A function of the user's under several back ends, each in a process of its own.

Open `command.py` first: the command, and the side that asks. `worker.py` measures.
"""
