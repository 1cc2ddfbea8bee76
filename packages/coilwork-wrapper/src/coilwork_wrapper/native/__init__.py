"""Program -> bytes, which `coilwork_runtime.executor` runs natively or in Python."""

from coilwork_wrapper.native.emit import EncodedProgram, emit_native, encode_program

__all__ = ["EncodedProgram", "emit_native", "encode_program"]
