"""Decide which loops a kernel gets, and what each pass over them does, before a line of it is written.

Open `table.py` first: it lists the decisions in order. `regions.py` groups stores that share a loop nest,
`parallelism.py` and `reduction_directives.py` decide about threads and passes, `plan.py` holds the result,
and `legality.py` refuses what cannot be written.
"""
