"""Coilwork programs as C++ source over torch's stable C interface, built into shared libraries and called."""

from coilwork_cpp_wrapper.build import Store, build_cpp, write_sources
from coilwork_cpp_wrapper.call import CompiledProgram
from coilwork_cpp_wrapper.module import emit_cpp
from coilwork_cpp_wrapper.program import CppProgram, KernelUnit, Port

__version__ = "0.1.0"

__all__ = [
    "CompiledProgram",
    "CppProgram",
    "KernelUnit",
    "Port",
    "Store",
    "build_cpp",
    "emit_cpp",
    "write_sources",
]
