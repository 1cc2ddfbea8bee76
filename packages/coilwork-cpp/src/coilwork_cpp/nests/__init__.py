"""Write the loops around the points of a kernel, and deal points out to lanes.

Open `nest.py` first: units of work and their loops. `rows.py` reduces along the vector, `columns.py` across
it, `points.py` has no reduction; the other files are special forms of these.
"""
