"""Compiled graphs that are kept: under which key, as what, and where machines share them."""
