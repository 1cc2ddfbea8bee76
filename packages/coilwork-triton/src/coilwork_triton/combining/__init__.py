"""Reductions, scans and sorts."""
