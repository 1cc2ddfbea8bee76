"""Calls that are looked at while they run: beside eager and float64, and for NaN and infinities.

Open `watch.py` first.
"""
