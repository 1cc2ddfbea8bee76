"""The Python emitter: a program as a readable module."""
