"""Coilwork's scheduler and memory planner: loop IR to kernels to a program."""

__version__ = "0.1.0"
