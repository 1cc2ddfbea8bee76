"""What Coilwork's generated code imports: build, load, launch, autotune, checks."""

__version__ = "0.1.0"
