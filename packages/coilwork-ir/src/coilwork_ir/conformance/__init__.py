"""Conformance kits: they show whether a code generator or wrapper agrees with the reference interpreters.

Open `check.py` first: `check_codegen` runs kernels. `random_kernels.py` has `check_cores`, `graph_cases.py`
the checks of attention, products and convolutions, `wrappers.py` has `check_wrapper`, and `text_cases.py`
runs tests that are text files. Needs torch (`pip install coilwork-ir[interpreter]`).
"""

from coilwork_ir.conformance.case import Case
from coilwork_ir.conformance.check import (
    CASES,
    Coverage,
    Result,
    Runner,
    check_codegen,
    format_failures,
    measure_coverage,
)
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
from coilwork_ir.conformance.op_cases import make_op_case
from coilwork_ir.conformance.random_kernels import (
    CORE_CASES,
    check_cores,
    make_random_case,
    make_random_core_case,
    make_random_kernel,
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
    "measure_coverage",
    "format_failures",
    "interpret_sources",
    "make_op_case",
    "make_random_case",
    "make_random_core_case",
    "make_random_kernel",
]
