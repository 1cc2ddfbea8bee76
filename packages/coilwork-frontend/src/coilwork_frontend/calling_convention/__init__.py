"""The calling convention of compiled ATen graphs: roles of inputs and results, applied around a program.

Open `convention.py` first: two tables list the roles in order. `aten_graph.py` is a graph as its callers see
it; each of the other files holds the roles of one idea.
"""
