"""Layouts of intermediates: one decision over the whole graph.

`assign.py` is the pass, and the file to open first; `traffic.py` is its cost, `candidates.py` what it chooses
from, `solve.py` how.
"""
