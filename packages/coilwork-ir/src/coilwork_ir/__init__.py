"""Coilwork's three intermediate representations, index arithmetic, op table and target descriptions."""

__version__ = "0.1.0"
