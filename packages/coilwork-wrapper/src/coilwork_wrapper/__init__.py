"""Coilwork programs as a Python module or a torch.fx.GraphModule."""

__version__ = "0.1.0"
