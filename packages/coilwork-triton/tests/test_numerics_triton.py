"""The three levels of numerics: what each promises of f32 functions, and of contraction."""

from __future__ import annotations

import re

import pytest
import torch
from kernel_bench import TritonProcess, along, arg, compile_source, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.kernels.rewrite import FUNCTIONS
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

COUNT = 4096
X = along("x0", COUNT)
F32 = DType.F32
A, B = load("in0", [X.symbol], F32), load("in1", [X.symbol], F32)
EVERY = {name: op(name, *(A, B)[: SCALAR_OPS[name].arity]) for name in sorted(FUNCTIONS)}


def source_of(values: list[Scalar], numerics: Numerics, *, half: bool = False) -> KernelSource:
    names = ("in1", *(f"out{k}" for k in range(len(values))))
    kernel = Kernel(
        name="levels",
        ranges=(X,),
        args=(arg("in0", DType.F16 if half else F32, COUNT), *(arg(n, F32, COUNT) for n in names)),
        stores=tuple(Store(buffer=f"out{k}", index=X.symbol, value=v) for k, v in enumerate(values)),
        numerics=numerics,
    )
    return TritonCodegen().emit(kernel, get_target("sm_90"), {})


def results(
    engine: TritonProcess, values: list[Scalar], numerics: Numerics, a: torch.Tensor, b: torch.Tensor
) -> list[torch.Tensor]:
    outputs = [torch.zeros(COUNT) for _ in values]
    return run_source(engine, source_of(values, numerics), [a, b, *outputs])[2:]


def ulps(got: torch.Tensor, wanted: torch.Tensor) -> int:
    """The largest distance in representable numbers of one sign."""
    return int((got.view(torch.int32).long() - wanted.view(torch.int32).long()).abs().max())


def test_strict_functions_are_the_nearest_numbers(engine: TritonProcess) -> None:
    torch.manual_seed(0)
    a, b = torch.rand(COUNT) * 0.98 + 0.01, torch.rand(COUNT) * 2 + 0.5
    a[: COUNT // 2] += 1.0
    for name, got in zip(EVERY, results(engine, list(EVERY.values()), "strict", a, b), strict=True):
        operands = (a.double(), b.double())[: SCALAR_OPS[name].arity]
        function = getattr(torch, name, None) or getattr(torch.special, name)
        exact = function(*operands).float()
        assert torch.equal(got.isnan(), exact.isnan()), name
        assert ulps(got.nan_to_num(), exact.nan_to_num()) <= 1, name
        assert (got == exact).sum() + got.isnan().sum() >= 0.999 * COUNT, name


def test_a_strict_chain_is_that_of_rounded_steps(engine: TritonProcess) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(COUNT) * 3, torch.rand(COUNT) + 0.5
    values = [op("exp", A), op("erf", A), op("tanh", A), op("sqrt", op("abs", A)), op("div", A, B)]
    chain = op("div", op("sqrt", op("exp", op("tanh", op("erf", A)))), B)
    *single, got = results(engine, [*values, chain], "strict", x, y)
    eager = (x.exp(), x.erf(), x.tanh(), x.abs().sqrt(), x / y)
    for one, wanted in zip(single, eager, strict=True):
        assert ulps(one, wanted) <= 1
    # torch's own square root of f32 vectors is not always the nearest number; that of f64, rounded, is
    assert torch.equal(single[3], x.abs().double().sqrt().float()) and torch.equal(single[4], x / y)
    steps = x
    for function in (torch.erf, torch.tanh, torch.exp):
        steps = function(steps.double()).float()
    assert ulps(got, steps.double().sqrt().float() / y) <= 1


def test_strict_text_holds_no_approximate_function() -> None:
    text = source_of(list(EVERY.values()), "strict").text
    body = [line.strip() for line in text[text.index("def levels(") :].splitlines()]
    loads = [line for line in body if "tl.load(" in line]
    stores = [line for line in body if line.startswith("tl.store(")]
    # nothing but f64 comes in, and every result is rounded when it is stored
    assert loads and all(line.endswith(".to(tl.float64)") for line in loads)
    assert len(stores) == len(FUNCTIONS) and all(line.endswith(".to(tl.float32))") for line in stores)
    exact = source_of([op("div", A, B), op("sqrt", A), op("truncdiv", A, B)], "strict").text
    exact = exact[exact.index("def levels(") :]
    assert exact.count("tl.div_rn(") == 2 and "tl.sqrt_rn(" in exact
    assert " / " not in exact and "tl.sqrt(" not in exact


@pytest.mark.parametrize("numerics", ["fast", "eager", "strict"])
def test_only_fast_kernels_may_be_contracted(numerics: Numerics) -> None:
    source = source_of([op("sub", op("mul", A, B), B)], numerics)
    assert {config.fp_fusion for config in source.configs} == {numerics == "fast"}


@pytest.mark.slow
def test_machine_code_contracts_only_fast_kernels(compiler: TritonProcess) -> None:
    value = op("sub", op("mul", A, B), B)
    assert "fma.rn.f32" in compile_source(compiler, source_of([value], "fast"), "sm_90")
    for numerics in ("eager", "strict"):
        text = compile_source(compiler, source_of([value], numerics), "sm_90")
        assert "fma.rn.f32" not in text and "mul" in text


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["eager", "strict"])
def test_machine_code_of_arithmetic_rounds_and_keeps_subnormals(
    compiler: TritonProcess, numerics: Numerics
) -> None:
    values = [op("add", op("mul", A, B), B), op("div", A, B), op("sqrt", A), op("maximum", A, B)]
    text = compile_source(compiler, source_of(values, numerics), "sm_90")
    assert "ftz" not in text and "approx" not in text and "div.full" not in text
    assert "div.rn.f32" in text and "sqrt.rn.f32" in text


GRADUAL = ("floor", "ceil", "sqrt", "rsqrt", "exp2", "sin", "erf")
COMPARISON = re.compile(r"setp\.[gl]t\.f32")


@pytest.mark.slow
@pytest.mark.parametrize("name", GRADUAL)
def test_machine_code_of_fast_functions_tells_subnormals_from_0(compiler: TritonProcess, name: str) -> None:
    assert COMPARISON.search(compile_source(compiler, source_of([op(name, A)], "fast"), "sm_90"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["floor", "ceil"])
@pytest.mark.parametrize("numerics", ["eager", "strict"])
def test_machine_code_of_exact_floor_and_ceil_tells_subnormals_from_0(
    compiler: TritonProcess, name: str, numerics: Numerics
) -> None:
    text = compile_source(compiler, source_of([op(name, A)], numerics), "sm_90")
    assert COMPARISON.search(text) and "f64" not in text


@pytest.mark.parametrize("name", GRADUAL)
def test_functions_of_no_subnormal_number_do_not_look_for_one(name: str) -> None:
    """A variance and epsilon, a position, a half; and what is added to 1 as erf is in GELU."""
    small, half = const(1e-12, F32), cast(load("in0", [X.symbol], DType.F16), F32)
    for operand in (op("add", A, small), op("sub", small, A), cast(index_value(X.symbol), F32), half):
        assert f"tl.{name}(" in source_of([op(name, operand)], "fast", half=operand is half).text
    one = const(1.0, F32)
    added = f"tl.{name}(" in source_of([op("add", op(name, A), one)], "fast").text.split("def levels(")[1]
    assert added == (name in ("sin", "erf"))
    for operand in (A, op("add", A, const(1e-30, F32)), op("add", A, B), op("mul", A, B)):
        text = source_of([op(name, operand)], "fast").text
        assert f"{name}_gradual(" in text.split("def levels(")[1]
    # what is stored as well is seen, whatever else it is added to
    seen = op(name, A)
    assert f"{name}_gradual(" in source_of([seen, op("add", seen, one)], "fast").text.split("def levels(")[1]


@pytest.mark.parametrize("name", GRADUAL)
def test_subnormal_numbers_count(engine: TritonProcess, name: str) -> None:
    a = torch.zeros(COUNT)
    few = [1e-45, -1e-45, 1e-40, -1e-40, 1.1754942e-38, 1.1754944e-38, 0.0, -0.0, 2.0, 3.5, -140.0, -126.5]
    a[: len(few)] = torch.tensor(few)
    (got,) = results(engine, [op(name, A)], "fast", a, a)
    wanted = getattr(torch, name)(a.double()).float()
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got.nan_to_num().signbit(), wanted.nan_to_num().signbit())
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=5e-45, equal_nan=True)


@pytest.mark.slow
def test_strict_machine_code_has_no_approximate_instruction(compiler: TritonProcess) -> None:
    # not erf: NVIDIA's of f64 makes powers of two by ex2.approx, which is exact on integers
    values = [EVERY["exp"], EVERY["tanh"], EVERY["log"], op("div", A, B), op("sqrt", A)]
    text = compile_source(compiler, source_of(values, "strict"), "sm_90")
    assert ".f32" in text and not re.search(
        r"\b(?:ex2|lg2|sin|cos|sqrt|rsqrt|div)\.(?:approx|full)\S*\.f32", text
    )
    assert "div.rn.f32" in text and "sqrt.rn.f32" in text
