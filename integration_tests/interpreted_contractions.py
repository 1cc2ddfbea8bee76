"""A process that checks matrix products that a GPU computes in generated kernels, with what is before and
behind them.

The kernels are run by Triton's interpreter on CPU tensors, or are C++. `test_contractions.py` starts it with
the environment that this takes, a folder for dumps, and reads one line of JSON: what is wrong with each case,
empty if all is well.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.backends import compile_with
from integration_tests.model_checks import no_fallback

Function = Callable[..., tuple[Tensor, ...]]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if dtype is torch.int8:
        return torch.randint(-127, 127, shape, generator=generator, dtype=dtype)
    return (torch.randn(shape, generator=generator) / 4).to(dtype)


def compared(function: Function, *inputs: Tensor) -> None:
    """Fail unless Coilwork is as near to a result in f64 as eager is, or within a few roundings
    of its type.
    """
    got = compile_with(function, "coilwork")(*inputs)
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    for mine, its, exact in zip(got, function(*inputs), function(*wide), strict=True):
        assert mine.dtype == its.dtype and mine.stride() == its.stride()
        scale = exact.abs().amax()
        allowed = 2 * (its.double() - exact).abs().amax() + 4 * torch.finfo(its.dtype).eps * scale
        assert (mine.double() - exact).abs().amax() <= allowed


def widened(m: int, n: int, k: int, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """A weight of 8 bits, with a scale per output behind the product."""

    def function(x: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        return (F.linear(x, weight.to(x.dtype)) * scale,)

    compared(function, drawn(m, k, dtype=dtype), drawn(n, k, dtype=torch.int8), drawn(n, dtype=dtype))


def scaled(m: int, n: int, k: int) -> None:
    """A weight of 8 bits, with a scale per output before the product."""

    def function(x: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        return (F.linear(x, weight.to(x.dtype) * scale[:, None]),)

    x, scale = drawn(m, k, dtype=torch.bfloat16), drawn(n, dtype=torch.bfloat16)
    compared(function, x, drawn(n, k, dtype=torch.int8), scale)


def linear(*, dtype: torch.dtype) -> None:
    """A bias, an activation and a residual; odd rows."""

    def function(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        return (F.gelu(F.linear(x, weight, bias)) + residual,)

    operands = ((4, 9, 40), (33, 40), (33,), (4, 9, 33))
    compared(function, *(drawn(*shape, dtype=dtype) for shape in operands))


def batches() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return ((q @ k.transpose(-1, -2)).softmax(-1) @ v,)

    compared(function, *(drawn(2, 3, 17, 24, seed=s) for s in range(3)))


def summands() -> None:
    """What is added is broadcast; factors other than 1 are ATen's."""

    def function(x: Tensor, y: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, ...]:
        first = torch.addmm(row, x, y)
        return first, torch.addmm(column, x, y), torch.addmm(row, x, y, alpha=2.0)

    compared(function, drawn(19, 21), drawn(21, 35), drawn(35), drawn(19, 1))


def transposed() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.t() @ y, (y.t() @ x).t().contiguous(), x.t()[3:, :] @ y[:, ::2]

    compared(function, drawn(26, 18), drawn(26, 22))


def gradients() -> None:
    """Both products of a linear layer's backward."""

    def function(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        leaves = [t.detach().requires_grad_() for t in (x, weight)]
        F.linear(leaves[0], leaves[1]).cos().sum().backward()
        return tuple(t.grad for t in leaves if t.grad is not None)

    x, weight = drawn(20, 36), drawn(27, 36)
    got = _gradients(compile_with(lambda x, w: F.linear(x, w).cos().sum(), "coilwork"), x, weight)
    for mine, its in zip(got, function(x, weight), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)


def _gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    function(*leaves).backward()
    return [t.grad for t in leaves if t.grad is not None]


def several_readers() -> None:
    """The result is read by a reduction, and returned."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = x @ y
        return z, z.amax(-1), (z * 2).sum(0)

    compared(function, drawn(20, 31, dtype=torch.float16), drawn(31, 40, dtype=torch.float16))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A case, under a value of the option `contractions`, and how many products kernels compute and ATen
    does. C++ kernels compute none by choice, unless they are `fast_in_cpp`.
    """

    run: Callable[[], None]
    contractions: str = "generated"
    generated: int = 1
    called: int = 0
    fast_in_cpp: bool = False


CASES: Final[Mapping[str, Check]] = {
    "8 bits": Check(run=partial(widened, 16, 70, 96), contractions="generated"),
    "8 bits by choice": Check(run=partial(widened, 16, 2048, 256), contractions="auto"),
    "8 bits in f16": Check(run=partial(widened, 5, 33, 50, dtype=torch.float16)),
    "8 bits in pieces": Check(run=partial(widened, 3, 40, 2048)),
    "8 bits of one row": Check(run=partial(widened, 1, 2048, 256), contractions="auto", fast_in_cpp=True),
    "scaled 8 bits": Check(run=partial(scaled, 16, 70, 96)),
    "many rows": Check(run=partial(widened, 65, 512, 256), contractions="auto", generated=0, called=1),
    "none by choice": Check(run=partial(widened, 16, 70, 96), contractions="aten", generated=0, called=0),
    "linear in f32": Check(run=partial(linear, dtype=torch.float32)),
    "linear in bf16": Check(run=partial(linear, dtype=torch.bfloat16)),
    "batches": Check(run=batches, generated=2),
    "summands": Check(run=summands, generated=2),
    "transposed": Check(run=transposed, generated=3),
    "gradients": Check(run=gradients, generated=3),
    "several readers": Check(run=several_readers),
}


def wrong_with(check: Check, trace: Path) -> str:
    """What is wrong with a case; empty if its results are right and its products are computed where they
    should be.
    """
    # options are read from the environment at every compile
    os.environ["COILWORK_TRACE"] = str(trace)
    os.environ["COILWORK_CONTRACTIONS"] = check.contractions
    torch._dynamo.reset()
    try:
        with no_fallback():
            check.run()
    except Exception:  # noqa: BLE001 - the test that asked fails with it
        return traceback.format_exc()
    decisions = "".join(path.read_text() for path in trace.glob("*/*.decisions.txt"))
    made = [line.split()[0] for line in decisions.splitlines() if line.split()[1:2] == ["contraction"]]
    found, expected = (made.count("yes"), made.count("no")), (check.generated, check.called)
    in_cpp = os.environ["COILWORK_TRITON_ON_CPU"] == "0"
    if check.contractions == "auto" and in_cpp and not check.fast_in_cpp:
        expected = (0, check.generated + check.called)
    if found == expected:
        return ""
    return f"products are not where they should be:\n{decisions}"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    chosen = sys.argv[2:]
    print(
        json.dumps(
            {
                name: wrong_with(check, folder / str(number))
                for number, (name, check) in enumerate(CASES.items())
                if not chosen or name in chosen
            }
        )
    )
