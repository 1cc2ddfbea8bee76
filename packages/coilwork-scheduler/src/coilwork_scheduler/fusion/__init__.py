"""Decide which stages share a kernel.

Open `fuse.py` first. `space.py` aligns iteration spaces, `weigh.py` and `traffic.py` say what a fusion gains,
`walk.py` joins rows and columns, `group_dag.py` refuses cycles.
"""
