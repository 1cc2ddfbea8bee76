"""Dynamo's graphs: rewritten for AOTAutograd, guarded, or run in eager mode.

The table `MENDS` of `compile_captured.py` lists the rewrites in order. Open `eager_fallback.py` first: how a
captured graph, or a part of it, runs in eager mode.
"""
