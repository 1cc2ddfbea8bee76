"""Write the loops around the points of a kernel, and deal points out to lanes.

Open `loops.py` first: units of work and their loops. `pointwise.py` has no reduction, `rows.py` reduces along
the vector (its points are in `row_points.py`), `columns.py` across it; `row_sort.py` sorts what rows fill.
"""
