"""Rewrite one kernel into kernels that are easier to write as loops.

Open `table.py` first: it lists the rewrites in order, with reasons. `normal_form.py`, `split.py` and
`piecewise.py` hold them.
"""
