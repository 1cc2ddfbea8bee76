"""Decide which producers are computed inside their consumers.

Open `inline.py` first. `expand.py` puts a body into another, `growth.py` and `rereads.py` weigh what that
costs; `unheld.py`, `handed_on.py` and `checked.py` say where run-time checks go.
"""
