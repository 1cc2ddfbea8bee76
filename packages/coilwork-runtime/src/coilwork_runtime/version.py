"""The package's version, where its own modules can import it."""

__version__ = "0.1.0"
