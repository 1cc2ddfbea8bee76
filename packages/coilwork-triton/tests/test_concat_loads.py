"""Joined tensors: one load through a selected pointer where every vector of 16 bytes comes from
one of them.
"""

from __future__ import annotations

import pytest
import torch
from kernel_bench import TARGETS, TritonProcess, along, arg, compile_source, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.scalar import Scalar, const, index_value, load, op
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

F32 = DType.F32
ROWS = 6


def joined(widths: tuple[int, ...], *, dim: int = 1, again: bool = False, exact: bool = True) -> Kernel:
    """The tensors of `widths` columns (or rows), joined along `dim`; twice the first one on top
    if `again`.
    """
    total = sum(widths)
    x0, x1 = (along("x0", ROWS), along("x1", total)) if dim == 1 else (along("x0", total), along("x1", 16))
    at = index_value((x0, x1)[dim].symbol)
    start, pieces = 0, []
    for k, width in enumerate(widths):
        inside: Scalar = op("lt", at, const(start + width, DType.I64))
        after = op("ge", at, const(start, DType.I64))
        mask = inside if start == 0 else op("bitwise_and", after, inside)
        place = x0.symbol * width + x1.symbol - start if dim == 1 else (x0.symbol - start) * 16 + x1.symbol
        pieces.append((inside, load(f"in{k}", [place], F32, mask=mask if exact else op("bitwise_not", mask))))
        start += width
    value: Scalar = pieces[-1][1]
    for inside, piece in reversed(pieces[:-1]):
        value = op("where", inside, piece, value)
    if again:
        value = op("add", value, pieces[0][1])
    columns = total if dim == 1 else 16
    size = (ROWS if dim == 1 else 16) * total
    inputs = [arg(f"in{k}", F32, w * (ROWS if dim == 1 else 16)) for k, w in enumerate(widths)]
    return Kernel(
        name="joined",
        ranges=(x0, x1),
        args=(*inputs, arg("out0", F32, size)),
        stores=(
            Store(
                buffer="out0", index=x0.symbol * columns + x1.symbol, value=op("mul", value, const(2.0, F32))
            ),
        ),
    )


def emitted(kernel: Kernel, name: str = "sm_90") -> KernelSource:
    return TritonCodegen().emit(kernel, get_target(name), {})


def loads(kernel: Kernel) -> int:
    text = emitted(kernel).text
    return text[text.index("\ndef joined(") :].count("tl.load(")


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("widths", [(4, 8), (16, 4, 12), (8, 8, 8, 8, 40)])
def test_parts_of_a_concatenation_are_one_load(
    engine: TritonProcess, widths: tuple[int, ...], dim: int
) -> None:
    kernel = joined(widths, dim=dim)
    assert loads(kernel) == 1
    tensors = [torch.randn((ROWS, w) if dim == 1 else (w, 16)) for w in widths]
    wanted = 2 * torch.cat(tensors, dim)
    got = run_source(engine, emitted(kernel), [*(t.flatten() for t in tensors), torch.zeros(wanted.numel())])
    assert torch.equal(got[-1].reshape(wanted.shape), wanted)


def test_rows_of_other_tensors_may_be_of_any_length_along_dim_0() -> None:
    assert loads(joined((3, 5, 7), dim=0)) == 1


def test_joints_within_vectors_keep_masked_loads(engine: TritonProcess) -> None:
    kernel = joined((3, 5, 8))
    assert loads(kernel) == 3
    tensors = [torch.randn(ROWS, w) for w in (3, 5, 8)]
    got = run_source(engine, emitted(kernel), [*(t.flatten() for t in tensors), torch.zeros(ROWS * 16)])
    assert torch.equal(got[-1].reshape(ROWS, 16), 2 * torch.cat(tensors, 1))


def test_a_load_that_is_used_again_and_masks_that_may_not_hold() -> None:
    assert loads(joined((4, 8), again=True)) == 2
    assert loads(joined((4, 8), exact=False)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_machine_code_has_one_wide_load(compiler: TritonProcess, name: str) -> None:
    text = compile_source(compiler, emitted(joined((128, 256, 128)), name), name)
    if name == "sm_90":
        assert text.count("ld.global.v4.b32") == text.count("ld.global") == 1
    else:
        assert text.count("global_load") == 1
