"""Coilwork's content-addressed store (local disk, Redis) and the typed caches on it."""

__version__ = "0.1.0"
