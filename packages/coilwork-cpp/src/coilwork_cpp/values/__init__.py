"""Scalar graphs as C++: what fills the loops."""
