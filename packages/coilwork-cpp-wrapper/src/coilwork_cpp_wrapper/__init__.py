"""Coilwork programs as C++ source, shared libraries and deployable packages."""

__version__ = "0.1.0"
