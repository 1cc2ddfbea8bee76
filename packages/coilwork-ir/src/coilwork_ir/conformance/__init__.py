"""Conformance kits: they show whether a code generator or wrapper agrees with the reference interpreters.

Open `check.py` first: `check_codegen` runs kernels. `random_kernels.py` has `check_cores`, `graph_cases.py`
the checks of attention, products and convolutions, `wrappers.py` has `check_wrapper`, and `text_cases.py`
runs tests that are text files. Needs torch (`pip install coilwork-ir[interpreter]`).
"""

from coilwork_ir.conformance.case import Case
from coilwork_ir.conformance.check import CASES, Coverage, Result, Runner, check_codegen, coverage, failures
from coilwork_ir.conformance.graph_cases import (
    ATTENTION_CASES,
    CONTRACTION_CASES,
    CONVOLUTION_CASES,
    AttentionCase,
    ContractionCase,
    ConvolutionCase,
    check_attention,
    check_contractions,
    check_convolutions,
)
from coilwork_ir.conformance.op_cases import op_case
from coilwork_ir.conformance.random_kernels import (
    CORE_CASES,
    check_cores,
    random_case,
    random_core_case,
    random_kernel,
)
from coilwork_ir.conformance.wrappers import WRAPPER_CASES, WrapperCase, check_wrapper, interpret_sources

__all__ = [
    "ATTENTION_CASES",
    "CASES",
    "CONTRACTION_CASES",
    "CONVOLUTION_CASES",
    "CORE_CASES",
    "WRAPPER_CASES",
    "AttentionCase",
    "Case",
    "ContractionCase",
    "ConvolutionCase",
    "Coverage",
    "Result",
    "Runner",
    "WrapperCase",
    "check_attention",
    "check_codegen",
    "check_contractions",
    "check_convolutions",
    "check_cores",
    "check_wrapper",
    "coverage",
    "failures",
    "interpret_sources",
    "op_case",
    "random_case",
    "random_core_case",
    "random_kernel",
]
