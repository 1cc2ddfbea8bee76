"""Coilwork's C++ code generator for CPUs: kernel IR to vectorised, threaded C++ source."""

from coilwork_cpp.codegen import CppCodegen
from coilwork_cpp.options import CppOptions

__version__ = "0.1.0"

__all__ = ["CppCodegen", "CppOptions", "__version__"]
