"""Coilwork programs as C++ source over torch's stable C interface, built into shared libraries and called.

Open `module.py` first: it writes a program and its kernels. `instructions.py` has a case for each
instruction, `calls.py` the calls of operators; `build_program.py` builds the text and calls the result.
"""

from coilwork_cpp_wrapper.build_program import CompiledProgram, build_cpp, write_sources
from coilwork_cpp_wrapper.embedding import Embedded, embed_kernels
from coilwork_cpp_wrapper.module import CppProgram, KernelUnit, Port, emit_cpp
from coilwork_cpp_wrapper.wrapper import CppArtifact, CppWrapper, load_cpp
from coilwork_ir.wrapper import Store

__version__ = "0.1.0"

__all__ = [
    "CompiledProgram",
    "CppArtifact",
    "CppProgram",
    "CppWrapper",
    "Embedded",
    "KernelUnit",
    "Port",
    "Store",
    "build_cpp",
    "embed_kernels",
    "emit_cpp",
    "load_cpp",
    "write_sources",
]
