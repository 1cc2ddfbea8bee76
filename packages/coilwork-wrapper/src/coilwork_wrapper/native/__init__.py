"""A program as bytes, which `coilwork_runtime.executor` runs natively or in Python.

Open `emit.py` first. `wire_format.py` describes the form, `instructions.py` has a case for each instruction.
`emit.py` also finds stretches that may be replayed.
"""

from coilwork_wrapper.native.emit import EncodedProgram, emit_native, encode_program

__all__ = ["EncodedProgram", "emit_native", "encode_program"]
