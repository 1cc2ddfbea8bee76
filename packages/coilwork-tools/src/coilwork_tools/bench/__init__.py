"""A function of the user's under several back ends, each in a process of its own.

Open `command.py` first: the command, the processes it starts, and the table. `worker.py` measures.
"""
