"""Choosing the configuration of a Triton kernel, by timing candidates or by a search around them.

Open `search.py` first. `coordinate_descent.py` is the algorithm, `records.py` keeps what was found, and
`candidate_selection.py` times the few candidates of a kernel that is not searched.
"""
