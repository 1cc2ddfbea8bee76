"""The roles of inputs and results: what is done around a program because callers have something else.

Open `convention.py` first: two tables list the roles in order. `aten_graph.py` is a graph as its callers see
it; each of the other files holds one role.
"""
