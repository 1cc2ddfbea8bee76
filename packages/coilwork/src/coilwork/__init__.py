"""A deep-learning compiler for PyTorch: torch.compile(model, backend="coilwork")."""

__version__ = "0.1.0"
