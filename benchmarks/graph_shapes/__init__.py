"""How compile time grows with the size of a graph, by its shape: `python -m benchmarks.graph_shapes --help`.

Read first: `shapes.py`, then `compilers.py`.
"""
