"""The lowering rules: one module per family of operators, each of which exports `RULES`.

Open `elementwise.py` first for the shortest rules, `reductions.py` for longer ones. `scattering/` writes at
positions from tensors, and `special_functions/` has series and recurrences.
"""
