"""A process that checks reductions and scans which a GPU does in pieces, and rows and columns that it reduces
in one kernel.

Their kernels are run by Triton's interpreter on CPU tensors. `test_split_reductions.py` starts it with the
environment that this takes, a folder for dumps, and reads one line of JSON: what is wrong with each case,
empty if all is well.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.backends import compile_with
from integration_tests.model_checks import no_fallback

Function = Callable[..., Tensor | tuple[Tensor, ...]]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def results(function: Function, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results of `function`, and the gradients of the inputs that want one."""
    found = function(*inputs)
    tensors = found if isinstance(found, tuple) else (found,)
    leaves = [x for x in inputs if x.requires_grad]
    if not leaves:
        return tensors
    return (*tensors, *torch.autograd.grad(tensors[0].square().sum(), leaves))


def compared(function: Function, *inputs: Tensor, tolerance: float = 1e-4, again: bool = False) -> None:
    """Fail unless Coilwork gives what eager gives with float64, and with `again` the same twice,
    to the bit.
    """
    compiled = compile_with(function, "coilwork")
    got = results(compiled, inputs)
    if again:
        assert all(torch.equal(a, b) for a, b in zip(got, results(compiled, inputs), strict=True))
    wide = [x.detach().double() if x.is_floating_point() else x for x in inputs]
    exact = results(function, [w.requires_grad_(x.requires_grad) for w, x in zip(wide, inputs, strict=True)])
    for one, other in zip(got, exact, strict=True):
        torch.testing.assert_close(
            one.double(), other.double(), rtol=tolerance, atol=tolerance * 10, equal_nan=True
        )


def batch_norm(form: torch.memory_format) -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, weight, bias, training=True).relu()

    x = (drawn(16, 3, 48, 48) + 3).to(memory_format=form).requires_grad_()
    compared(function, x, drawn(3).requires_grad_(), drawn(3).requires_grad_(), tolerance=1e-3)


def layer_norm_weights() -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, (48,), weight, bias)

    compared(
        function, drawn(6000, 48), drawn(48).requires_grad_(), drawn(48).requires_grad_(), tolerance=1e-3
    )


def extremes() -> None:
    compared(lambda x: x.argmax(), (drawn(30011) * 4).round())
    columns = (drawn(7001, 4) * 2).round()
    columns[[2001, 6000], 1] = math.nan
    compared(lambda x: x.argmin(0), columns)


def column_sums_of_bf16() -> None:
    compared(lambda x: x.sum(0), drawn(6007, 48).to(torch.bfloat16), tolerance=1e-2)


def every_batch() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum((0, 1, 2)), x.flatten(0, 2).var(0)

    for batch in (40, 5, 2, 41):
        x = drawn(batch, 40, 40, 8)
        torch._dynamo.mark_dynamic(x, 0)
        compared(function, x, tolerance=1e-3)


def numbers_and_truths() -> None:
    x = (drawn(70001) * 100).to(torch.int32)
    compared(lambda x: (x.sum(), (x > 480).any(), (x < 900).all()), x)


def norm(name: str, rows: tuple[int, ...], width: int, **options: bool) -> None:
    """Forward and backward of a norm of the last dimension."""
    one = getattr(functional, name)
    weights = [drawn(width).requires_grad_() for _ in range(1 if name == "rms_norm" else 2)]
    if not options.get("weights", True):
        weights = []

    def function(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        # what flows around the norm, as in a residual block
        around = x * 2 if options.get("residual") else x
        y = one(around, (width,), *parameters)
        return (y + around,) if options.get("residual") else (y,)

    x = drawn(*rows, width).requires_grad_()
    compared(function, x, *weights, tolerance=1e-3, again=options.get("again", False))


def low_precision_norm() -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, (136,), weight, bias)

    x, weight, bias = (drawn(*shape).bfloat16().requires_grad_() for shape in ((1056, 136), (136,), (136,)))
    compared(function, x, weight, bias, tolerance=3e-2)


def biases() -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return functional.linear(x, weight, bias).softmax(-1), functional.rms_norm(x + bias[:40], (40,))

    compared(
        function,
        drawn(5, 211, 40).requires_grad_(),
        drawn(144, 40).requires_grad_(),
        drawn(144).requires_grad_(),
        tolerance=1e-3,
    )


def overwritten_gradient() -> None:
    """The gradient of a norm's operand goes into memory that is given away."""

    def function(
        x: Tensor, flow: Tensor, weight: Tensor, mean: Tensor, deviation: Tensor
    ) -> tuple[Tensor, ...]:
        normal = (x - mean) * deviation
        scaled = flow * weight
        slope = (scaled * normal).mean(-1, keepdim=True)
        gradient = deviation * (scaled - scaled.mean(-1, keepdim=True) - normal * slope)
        weight_gradient = (flow * normal).sum(0)
        flow.copy_(gradient)
        return weight_gradient, flow.sum() * 0

    x, weight = drawn(1055, 104) + 1, drawn(104)
    mean, deviation = x.mean(-1, keepdim=True), x.var(-1, keepdim=True).rsqrt()
    flow, wide = drawn(1055, 104), drawn(1055, 104).double()
    got = compile_with(function, "coilwork")(x, flow, weight, mean, deviation)
    exact = function(x.double(), wide, weight.double(), mean.double(), deviation.double())
    torch.testing.assert_close(flow.double(), wide, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(got[0].double(), exact[0], rtol=1e-3, atol=1e-2)


def every_number_of_rows() -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (96,), weight)

    for rows in (1100, 1059, 7):
        x = drawn(rows, 96).requires_grad_()
        torch._dynamo.mark_dynamic(x, 0)
        compared(function, x, drawn(96).requires_grad_(), tolerance=1e-3)


CASES: Final[Mapping[str, Callable[[], None]]] = {
    "sum of everything": lambda: compared(lambda x: x.sum(), drawn(70001), tolerance=1e-3),
    "column sums of bf16": column_sums_of_bf16,
    "variance beside a large mean": lambda: compared(
        lambda x: torch.var_mean(x, -1), drawn(3, 30011) + 1000, tolerance=1e-3
    ),
    "softmax of long rows": lambda: compared(lambda x: x.softmax(-1).amax(-1), drawn(2, 30011)),
    "extremes": extremes,
    "integers and truths": numbers_and_truths,
    "batch norm, channels first": lambda: batch_norm(torch.contiguous_format),
    "batch norm, channels last": lambda: batch_norm(torch.channels_last),
    "gradients of layer norm's weights": layer_norm_weights,
    "a batch of any size": every_batch,
}
SCANNED: Final[Mapping[str, Callable[[], None]]] = {
    "running sums of few long columns": lambda: compared(
        lambda x: x.cumsum(0), drawn(65536, 8), tolerance=1e-3, again=True
    ),
    "running sums in the middle": lambda: compared(
        lambda x: (1 + x / 1000).cumsum(1), drawn(2, 30720, 8), tolerance=1e-3
    ),
}


def running_types() -> None:
    for dtype in (torch.float16, torch.float64, torch.int64):
        compared(lambda x: x.cumsum(1), drawn(2, 70001).mul(8).to(dtype), tolerance=2e-2, again=True)


def running_extremes() -> None:
    x = (drawn(2, 70001) * 4).round()
    for value in (0.0, math.nan, -math.inf):
        x[:, 60000:60004] = value
        compared(lambda x: (*x.cummax(1), x.cummin(1)[1]), x, tolerance=0)


def running_logarithms() -> None:
    x = drawn(2, 70001) * 8
    x[0, :5000], x[1, 30000] = -math.inf, math.inf
    compared(lambda x: x.logcumsumexp(1), x, again=True)


def running_sums_and_gradients() -> None:
    compared(lambda x: (x * 2).cumsum(-1).sin(), (drawn(2, 3, 20001) / 100).requires_grad_(), tolerance=1e-2)


SHARED: Final[Mapping[str, Callable[[], None]]] = {
    "running sums of few long rows": lambda: compared(
        lambda x: (x * 2).cumsum(1).relu() - x, drawn(2, 70001), tolerance=1e-3, again=True
    ),
    "a running product": lambda: compared(lambda x: (1 + x / 1000).cumprod(0), drawn(65536), tolerance=1e-3),
    "running sums of other types": running_types,
    "running extremes": running_extremes,
    "running logarithms of sums": running_logarithms,
    "running sums and gradients": running_sums_and_gradients,
}
SEQUENTIAL: Final[Mapping[str, Callable[[], None]]] = {
    "layer norm": lambda: norm("layer_norm", (1056,), 104, again=True),
    "layer norm of odd sizes": lambda: norm("layer_norm", (1033,), 107),
    "layer norm of batches": lambda: norm("layer_norm", (8, 132), 104),
    "layer norm of odd batches": lambda: norm("layer_norm", (7, 151), 96, again=True),
    "layer norm and what goes around it": lambda: norm("layer_norm", (1056,), 104, residual=True),
    "layer norm of a long row": lambda: norm("layer_norm", (530,), 1000),
    "rms norm": lambda: norm("rms_norm", (1056,), 104),
    "rms norm of odd sizes, and what goes around it": lambda: norm("rms_norm", (1031,), 99, residual=True),
    "layer norm in bf16": low_precision_norm,
    "biases before rows": biases,
    "a gradient in place": overwritten_gradient,
    "any number of rows": every_number_of_rows,
}
# What stays as it is: without weights there are no columns, and a few rows are no work for programs that take
# several each.
APART: Final[Mapping[str, Callable[[], None]]] = {
    "layer norm without weights": lambda: norm("layer_norm", (1056,), 104, weights=False),
    "fewer rows than programs": lambda: norm("layer_norm", (200,), 104),
    "rows that do not stay in registers": lambda: norm("layer_norm", (300,), 9000),
}


def wrong_with(case: Callable[[], None], trace: Path, rule: str, *, wanted: bool = True) -> str:
    """What is wrong with `case`; empty if it agrees with eager, and `rule` was followed where that is
    `wanted`.
    """
    # options are read from the environment at every compile
    os.environ["COILWORK_TRACE"] = str(trace)
    torch._dynamo.reset()
    try:
        with no_fallback():
            case()
    except Exception:  # noqa: BLE001 - the test that asked fails with it
        return traceback.format_exc()
    decisions = "".join(path.read_text() for path in trace.glob("*/*.decisions.txt"))
    followed = any(line.split()[:2] == ["yes", rule] for line in decisions.splitlines())
    return "" if followed is wanted else f"{rule} is not as expected:\n{decisions}"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    chosen = sys.argv[2:]
    answers: dict[str, str] = {}
    for cases, rule, wanted in (
        (CASES, "split", True),
        (SCANNED, "split-scan", True),
        (SHARED, "single-pass", True),
        (SEQUENTIAL, "fuse-row-column", True),
        (APART, "fuse-row-column", False),
    ):
        for name, case in cases.items():
            if not chosen or name in chosen:
                answers[name] = wrong_with(case, folder / str(len(answers)), rule, wanted=wanted)
    print(json.dumps(answers))
