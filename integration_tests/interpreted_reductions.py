"""A process that checks reductions which a GPU does in pieces, their kernels run by Triton's interpreter on CPU tensors.

`test_split_reductions.py` starts it with the environment that this takes, a folder for dumps, and reads one line of JSON:
what is wrong with each case, empty if all is well.
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


def compared(function: Function, *inputs: Tensor, tolerance: float = 1e-4) -> None:
    """Fail unless Coilwork gives what eager gives with float64."""
    got = results(compile_with(function, "coilwork"), inputs)
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
    # the interpreter combines positions point by point: as few points as are worth splitting
    compared(lambda x: x.argmax(), (drawn(30011) * 4).round())
    columns = (drawn(7001, 4) * 2).round()
    columns[[2001, 6000], 1] = math.nan
    compared(lambda x: x.argmin(0), columns)


def column_sums_of_bf16() -> None:
    compared(lambda x: x.sum(0), drawn(6007, 48).to(torch.bfloat16), tolerance=1e-2)


def every_batch() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum((0, 1, 2)), x.flatten(0, 2).var(0)

    for batch in (2, 5, 9):
        x = drawn(batch, 40, 40, 8)
        torch._dynamo.mark_dynamic(x, 0)
        compared(function, x, tolerance=1e-3)


def numbers_and_truths() -> None:
    x = (drawn(70001) * 100).to(torch.int32)
    compared(lambda x: (x.sum(), (x > 480).any(), (x < 900).all()), x)


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


def wrong_with(name: str, trace: Path) -> str:
    """What is wrong with case `name`; empty if it agrees with eager and something was split."""
    # options are read from the environment at every compile
    os.environ["COILWORK_TRACE"] = str(trace)
    torch._dynamo.reset()
    try:
        with no_fallback():
            CASES[name]()
    except Exception:  # noqa: BLE001 - the test that asked fails with it
        return traceback.format_exc()
    decisions = "".join(path.read_text() for path in trace.glob("*/*.decisions.txt"))
    split = any(line.split()[:2] == ["yes", "split"] for line in decisions.splitlines())
    return "" if split else f"nothing was split:\n{decisions}"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    print(json.dumps({name: wrong_with(name, folder / str(k)) for k, name in enumerate(CASES)}))
