"""Products and convolutions: who computes each, a call of a library or loops of ours.

Open `choose.py` first, which has the registry.
"""
