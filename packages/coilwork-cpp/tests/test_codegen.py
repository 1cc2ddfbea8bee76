"""Whole files: expected texts, purity, and what the source declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cpp_fixtures import LoadKernel, named_arg

from coilwork_cpp import CppCodegen
from coilwork_ir.backend import Codegen
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, format_expr, symbol
from coilwork_ir.kernels import ComboKernel, Kernel, Member, Range, Store
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.loc import Origin
from coilwork_ir.loops.nodes import Check
from coilwork_ir.scalar import cast, const, index_value, load, op, placeholder, reduce, sort
from coilwork_ir.target import get_target

F32, BF16, I64 = DType.F32, DType.BF16, DType.I64
N = symbol("n0", lo=0)


def space(parallel: list[Expr | int], reduced: list[Expr | int]) -> tuple[tuple[Range, ...], list[Expr]]:
    made = [Range(symbol=symbol(f"x{k}", extent=e), kind="parallel") for k, e in enumerate(parallel)]
    made += [Range(symbol=symbol(f"r{k}", extent=e), kind="reduction") for k, e in enumerate(reduced)]
    return tuple(made), [r.symbol for r in made]


def bias_gelu() -> Kernel:
    ranges, (x, y) = space([N, 3072], [])
    at = x * 3072 + y
    v = op("add", cast(load("in0", [at], BF16), F32), cast(load("in1", [y], BF16), F32))
    half = op("mul", v, const(0.5, F32))
    gelu = op("mul", half, op("add", op("erf", op("mul", v, const(2**-0.5, F32))), const(1, F32)))
    return Kernel(
        name="bias_gelu",
        ranges=ranges,
        args=(
            named_arg("in0", BF16, N * 3072),
            named_arg("in1", BF16, 3072),
            named_arg("out0", BF16, N * 3072),
        ),
        sizes=(N,),
        stores=(Store(buffer="out0", index=at, value=cast(gelu, BF16)),),
        origins=(
            Origin(
                node="add", op="aten.add.Tensor", file="model.py", line=12, code="x = self.fc(x) + self.bias"
            ),
            Origin(node="gelu", op="aten.gelu", file="model.py", line=13, code="x = F.gelu(x)", module="mlp"),
        ),
    )


def softmax() -> Kernel:
    ranges, (x, r) = space([N], [1000])
    v = load("in0", [x * 1000 + r], F32)
    e = op("exp", op("sub", v, reduce("online_softmax", [v], [r])))
    value = op("div", e, reduce("online_softmax", [v], [r], output=1))
    return Kernel(
        name="softmax",
        ranges=ranges,
        args=(named_arg("in0", F32, N * 1000), named_arg("out0", F32, N * 1000)),
        sizes=(N,),
        stores=(Store(buffer="out0", index=x * 1000 + r, value=value),),
    )


def column_mean() -> Kernel:
    ranges, (x, r) = space([4096], [500])
    mean = op("div", reduce("sum", [load("in0", [r * 4096 + x], F32)], [r]), const(500, F32))
    return Kernel(
        name="column_mean",
        ranges=ranges,
        args=(named_arg("in0", F32, 500 * 4096), named_arg("out0", F32, 4096)),
        stores=(Store(buffer="out0", index=x, value=mean),),
    )


def embedding() -> Kernel:
    ranges, (x, y) = space([N, 64], [])
    at = load("in1", [x], I64)
    inside = op("bitwise_and", op("ge", at, const(0, I64)), op("lt", at, const(100, I64)))
    value = load("in0", [placeholder(0) * 64 + y], F32, indirect=[at])
    return Kernel(
        name="embedding",
        ranges=ranges,
        args=(named_arg("in0", F32, 6400), named_arg("in1", I64, N), named_arg("out0", F32, N * 64)),
        sizes=(N,),
        stores=(Store(buffer="out0", index=x * 64 + y, value=value),),
        checks=(Check(condition=inside, message="index out of range in self", error="IndexError"),),
    )


def transpose_add() -> Kernel:
    ranges, (x, y) = space([200, 300], [])
    value = op("add", load("in0", [y * 200 + x], F32), load("in1", [x * 300 + y], F32))
    return Kernel(
        name="transpose_add",
        ranges=ranges,
        args=(named_arg("in0", F32, 60000), named_arg("in1", F32, 60000), named_arg("out0", F32, 60000)),
        stores=(Store(buffer="out0", index=x * 300 + y, value=value),),
    )


def sorted_rows() -> Kernel:
    """The first 40 of doubled numbers, the largest first, and where they were."""
    ranges, (x, r) = space([N], [50000])
    value = op("mul", load("in0", [x * 50000 + r], F32), const(2, F32))
    first = op("lt", index_value(r), index_value(as_expr(40)))
    return Kernel(
        name="sorted_rows",
        ranges=ranges,
        args=(
            named_arg("in0", F32, N * 50000),
            named_arg("out0", F32, N * 40),
            named_arg("out1", I64, N * 40),
        ),
        sizes=(N,),
        stores=tuple(
            Store(
                buffer=f"out{k}",
                index=x * 40 + r,
                value=sort(value, r, output=k, descending=True),
                mask=first,
            )
            for k in (0, 1)
        ),
    )


KERNELS = (bias_gelu, softmax, column_mean, embedding, sorted_rows, transpose_add)


@pytest.mark.parametrize("make", KERNELS)
def test_kernels_are_written_as_the_golden_files_say(
    make: Callable[[], Kernel], request: pytest.FixtureRequest
) -> None:
    text = CppCodegen().emit(make(), get_target("x86-64-avx512"), {}).text
    golden = Path(__file__).parent / "goldens" / f"{make.__name__}.cpp"
    if request.config.getoption("--update", default=False):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("make", KERNELS)
def test_equal_kernels_give_equal_text(make: Callable[[], Kernel]) -> None:
    generator = CppCodegen()
    first, second = (generator.emit(make(), get_target("x86-64-avx2"), {}) for _ in range(2))
    assert first == second


def test_source_declares_its_arguments() -> None:
    source = CppCodegen().emit(embedding(), get_target("x86-64-avx512"), {})
    assert [(a.name, a.role, a.dtype) for a in source.args] == [
        ("in0", "in", F32),
        ("in1", "in", I64),
        ("out0", "out", F32),
        ("n0", "size", I64),
    ]
    assert source.checks == ("IndexError: index out of range in self",)
    assert source.features == get_target("x86-64-avx512").features and not source.grid and not source.configs
    assert source.read_bytes is not None and format_expr(source.read_bytes) == "8*n0 + 25600"
    assert 'extern "C" i64 embedding(' in source.text


def test_no_header_is_included() -> None:
    for make in KERNELS:
        assert "#include" not in CppCodegen().emit(make(), get_target("x86-64-avx512"), {}).text


def test_the_protocol_is_kept() -> None:
    assert isinstance(CppCodegen(), Codegen)


def test_strict_numerics_does_not_fuse_multiply_and_add(load_kernel: LoadKernel) -> None:
    ranges, (x,) = space([1000], [])
    a, b = load("in0", [x], F32), load("in1", [x], F32)
    kernel = Kernel(
        name="multiply_subtract",
        ranges=ranges,
        args=(named_arg("in0", F32, 1000), named_arg("in1", F32, 1000), named_arg("out0", F32, 1000)),
        stores=(Store(buffer="out0", index=x, value=op("sub", op("mul", a, b), b)),),
        numerics="strict",
    )
    p, q, out = torch.randn(1000), torch.randn(1000), torch.empty(1000)
    load_kernel(kernel)(p, q, out)
    assert torch.equal(out, p * q - q)
    load_kernel(replace(kernel, numerics="fast"))(p, q, out)
    assert torch.allclose(out, p * q - q, atol=1e-6)


def test_shared_launches_are_for_gpus() -> None:
    body = Kernel(
        name="member",
        ranges=(Range(symbol=symbol("x0", extent=as_expr(8)), kind="parallel"),),
        args=(named_arg("out0", F32, 8),),
        stores=(Store(buffer="out0", index=symbol("x0", extent=as_expr(8)), value=const(1.0, F32)),),
    )
    kernel = Kernel(
        name="ones",
        ranges=(),
        args=(named_arg("m0_out0", F32, 8), named_arg("m1_out0", F32, 8)),
        stores=(),
        combined=ComboKernel(body=body, members=(Member(args=("m0_out0",)), Member(args=("m1_out0",)))),
    )
    with pytest.raises(EmitError) as caught:
        CppCodegen().emit(kernel, get_target("x86-64-avx512"), {})
    assert caught.value.code == "combined"


def test_sequential_rows_are_for_gpus() -> None:
    x, w, r = symbol("x0", extent=2), symbol("w0", extent=3), symbol("r0", extent=4)
    value = load("in0", [12 * x + 4 * w + r], F32)
    kernel = Kernel(
        name="columns",
        ranges=(
            Range(symbol=x, kind="parallel"),
            Range(symbol=w, kind="sequential"),
            Range(symbol=r, kind="reduction"),
        ),
        args=(named_arg("in0", F32, 24), named_arg("out0", F32, 8)),
        stores=(Store(buffer="out0", index=4 * x + r, value=reduce("sum", [value], [w])),),
    )
    verify_kernel(kernel)
    with pytest.raises(EmitError) as caught:
        CppCodegen().emit(kernel, get_target("x86-64-avx2"), {})
    assert caught.value.code == "sequential"
