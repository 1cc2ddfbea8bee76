"""Decide which loops a kernel gets, and what each pass over them does, before a line of it is written.

Open `table.py` first: it lists the decisions in order. `regions.py` groups stores that share a loop nest,
`units.py` and `pass_plan.py` decide about threads and passes, `plan.py` is the result.
"""
