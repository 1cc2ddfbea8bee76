"""Sums of products on matrix units."""
