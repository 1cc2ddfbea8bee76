"""A conformance kit for code generators: named kernels, inputs for them, and a comparison with the interpreter.

A package that adds a target runs `check_codegen` in its tests. Needs torch (`pip install coilwork-ir[interpreter]`).
"""

from coilwork_ir.conformance.cases import CASES, Case
from coilwork_ir.conformance.check import Result, Runner, check_codegen, failures

__all__ = ["CASES", "Case", "Result", "Runner", "check_codegen", "failures"]
