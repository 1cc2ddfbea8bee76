"""Products, convolutions and attention: who computes each, a call of a library or loops of ours.

Open `choose.py` first: it holds the passes. `registry.py` lists the implementations and templates.
"""
