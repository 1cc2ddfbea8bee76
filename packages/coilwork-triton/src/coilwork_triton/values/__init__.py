"""Write scalar graphs as Triton expressions.

Open `values.py` first: one line per value. `addresses.py` and `runs.py` write loads, `known.py` keeps values
by scope, `shortcuts.py` and `choices.py` have shorter forms.
"""
