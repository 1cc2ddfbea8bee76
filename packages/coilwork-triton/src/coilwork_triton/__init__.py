"""Coilwork's Triton code generator: kernel IR to Triton source."""

__version__ = "0.1.0"
