"""Products, convolutions and attention: who computes each, a call of a library or loops of ours.

Open `registry.py` first: it lists the implementations and templates. `choose_implementations.py` above this
folder is the pass that chooses.
"""
