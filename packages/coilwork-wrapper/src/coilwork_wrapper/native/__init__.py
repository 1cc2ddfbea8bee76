"""Program -> bytes for the native executor of `coilwork_runtime.executor`."""

from coilwork_wrapper.native.emit import emit_native

__all__ = ["emit_native"]
