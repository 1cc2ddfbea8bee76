"""Loops, stores and their order."""
