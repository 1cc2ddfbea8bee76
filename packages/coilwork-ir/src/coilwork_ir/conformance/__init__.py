"""A conformance kit for code generators: named kernels, inputs for them, and a comparison with the interpreter.

A package that adds a target runs `check_codegen` in its tests; what computes attention, `check_attention`,
products, `check_contractions`, and convolutions, `check_convolutions`. Kernels with a core have their own cases, `check_cores`. Needs torch
(`pip install coilwork-ir[interpreter]`).
"""

from coilwork_ir.conformance.attention_cases import ATTENTION_CASES, AttentionCase, check_attention
from coilwork_ir.conformance.case import Case
from coilwork_ir.conformance.check import Result, Runner, check_codegen, failures
from coilwork_ir.conformance.contraction_cases import CONTRACTION_CASES, ContractionCase, check_contractions
from coilwork_ir.conformance.convolution_cases import CONVOLUTION_CASES, ConvolutionCase, check_convolutions
from coilwork_ir.conformance.core_cases import CORE_CASES, check_cores, random_core_case
from coilwork_ir.conformance.coverage import CASES, Coverage, coverage
from coilwork_ir.conformance.op_cases import op_case
from coilwork_ir.conformance.random_kernels import random_case, random_kernel

__all__ = [
    "ATTENTION_CASES",
    "CASES",
    "CONTRACTION_CASES",
    "CONVOLUTION_CASES",
    "CORE_CASES",
    "AttentionCase",
    "Case",
    "ContractionCase",
    "ConvolutionCase",
    "Coverage",
    "Result",
    "Runner",
    "check_attention",
    "check_codegen",
    "check_contractions",
    "check_convolutions",
    "check_cores",
    "coverage",
    "failures",
    "op_case",
    "random_case",
    "random_core_case",
    "random_kernel",
]
