"""Loops around points, and how points are dealt out to lanes."""
