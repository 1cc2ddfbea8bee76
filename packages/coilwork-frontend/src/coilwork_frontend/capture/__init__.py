"""Dynamo's graphs: mended for AOTAutograd, or run in eager mode for calls that must not be compiled.

The table `MENDING` of `compile_captured.py` lists the mends in order. Each file here holds one of them; open
`captured_graph.py` first for how a captured graph runs in eager mode.
"""
