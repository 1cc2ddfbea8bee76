"""Around the call of a program: the roles of its inputs and results, applied.

Open `interpreting.py` first: one call, rows before it, the program, rows after it. `binding.py` chooses who
interprets them, and `tensors.py` has the functions on tensors.
"""
