"""What the verifiers of the three IRs share.

Open `rules.py` first: a rule, and the error that names it. `scope.py` has the names that exist at a point,
`scalars.py` the checks of scalar graphs, `boxes.py` parts of buffers.
"""
