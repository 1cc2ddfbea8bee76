"""ATen FX graphs to Coilwork's loop IR: decompositions, pattern rewrites, one lowering per op."""

__version__ = "0.1.0"
