"""Layouts of intermediates: one decision over the whole graph.

Open `assign.py` first: it is the pass. `rules.py` is the table of what costs depend on, `constraints.py` what
a rule answers, `traffic.py` the cost of loops, and `solve.py` chooses.
"""
