"""The caches as one file: `save` what this process compiled, and `load` it on another machine."""

from coilwork_cache import load, save

__all__ = ["load", "save"]
