"""Rewrite one kernel into kernels that are easier to write as loops.

Open `table.py` first: it lists the rewrites in order, with reasons. Each of the other files holds one of
them, or what several need.
"""
