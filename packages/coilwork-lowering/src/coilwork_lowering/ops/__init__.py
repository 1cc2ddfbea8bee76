"""The lowering rules, one module per family of operators, which exports `RULES`; beside them what several
families share.

What writes at positions from tensors and special functions have rooms of their own.
"""
