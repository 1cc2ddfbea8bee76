"""A process that checks sorts of rows, their first elements and elements by rank, as a GPU does them in
kernels.

The kernels are run by Triton's interpreter on CPU tensors. `test_sorts.py` starts it with the environment
that this takes, a folder for dumps, and reads one line of JSON: what is wrong with each case, empty if all is
well.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final
from unittest import mock

import torch
from torch import Tensor

from benchmarks.backends import compile_with
from integration_tests.model_checks import no_fallback

Function = Callable[..., tuple[Tensor, ...]]


def drawn(*shape: int, scale: float = 2.0) -> Tensor:
    """Numbers with many ties."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * scale).round()


def special() -> Tensor:
    """Rows in which zeros of both signs, infinities and NaN are all over the place."""
    x = drawn(7, 37)
    x[x == 1] = math.nan
    x[x == 2] = -math.inf
    x[x == 3] = math.inf
    return torch.where(x == 0, torch.copysign(x, drawn(7, 37, scale=9.0)), x)


def compared(function: Function, *inputs: Tensor) -> None:
    """Fail unless Coilwork gives what eager gives, to the bit but for those of a NaN."""
    got = compile_with(function, "coilwork")(*inputs)
    for mine, its in zip(got, function(*inputs), strict=True):
        assert mine.dtype == its.dtype and mine.stride() == its.stride()
        torch.testing.assert_close(mine, its, rtol=0, atol=0, equal_nan=True)
        if its.dtype.is_floating_point:
            assert torch.equal(mine.signbit() & (mine == 0), its.signbit() & (its == 0))


def ordered(x: Tensor, dim: int = -1, *, descending: bool = False) -> tuple[Tensor, ...]:
    return tuple(torch.sort(x, dim=dim, stable=True, descending=descending))


def sorted_in(*, descending: bool) -> None:
    function = partial(ordered, descending=descending)
    compared(function, special())
    for dtype in (torch.float16, torch.bfloat16):
        compared(function, special().to(dtype))
    for dtype in (torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool):
        compared(function, drawn(5, 33).to(dtype))


def shapes() -> None:
    for x, dim in (
        (drawn(3, 16, 5), 1),
        (drawn(16, 40), 0),
        (drawn(9), 0),
        (drawn(4, 1), 1),
        (drawn(2, 200), 1),
    ):
        compared(partial(ordered, dim=dim), x)
    compared(partial(ordered, dim=0), drawn(9, 6).t())


def around() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        values, positions = torch.sort(x.softmax(-1), dim=-1, stable=True)
        return values * 2, positions.to(torch.int32), values.amax(-1)

    x = torch.randn(6, 48, generator=torch.Generator().manual_seed(1))
    got = compile_with(function, "coilwork")(x)
    for mine, its in zip(got, function(x), strict=True):
        torch.testing.assert_close(mine, its)


def first(k: int, *shape: int, largest: bool = True, dtype: torch.dtype = torch.float32) -> None:
    """Of equal elements the first ones are taken, as a stable sort has them."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.topk(x * 3, k, -1, largest))

    x = drawn(*shape, scale=20.0).to(dtype)
    got = compile_with(function, "coilwork")(x)
    values, positions = torch.sort(x * 3, dim=-1, stable=True, descending=largest)
    assert torch.equal(got[0], values[..., :k]) and torch.equal(got[1], positions[..., :k])


def ranks() -> None:
    rows = torch.stack([torch.randperm(27, generator=torch.Generator().manual_seed(k)) for k in range(5)])
    for x in (rows.float(), rows.bfloat16(), rows.to(torch.int16)):
        compared(lambda x: (*torch.kthvalue(x, 5), *torch.median(x, -1)), x)
    some = rows.float()
    some[2, 3], some[3] = math.nan, math.nan
    compared(lambda x: (*torch.median(x, -1), torch.nanmedian(x, -1).values), some)


def keys_in_pieces(rows: int) -> None:
    """The gradient of an embedding sorts its indices, pieces of them on chip."""

    def function(grad: Tensor, ids: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten.embedding_dense_backward(grad, ids, rows, -1, False)
        return found

    ids = (torch.rand(700, generator=torch.Generator().manual_seed(2)) ** 8 * rows).long()
    grad = drawn(700, 3)
    with mock.patch.dict(os.environ, COILWORK_ACCUMULATION="sorted"):
        torch.testing.assert_close(compile_with(function, "coilwork")(grad, ids), function(grad, ids))


CASES: Final[Mapping[str, Callable[[], None]]] = {
    "sort": partial(sorted_in, descending=False),
    "descending sort": partial(sorted_in, descending=True),
    "sorts of every shape": shapes,
    "what is around a sort": around,
    "first of long rows": partial(first, 11, 3, 300),
    "least of long rows": partial(first, 16, 3, 256, largest=False),
    "first of short rows in bf16": partial(first, 9, 20, 40, dtype=torch.bfloat16),
    "few of long rows": partial(first, 20, 3, 1500),
    "few of long rows in bf16": partial(first, 30, 3, 2048, dtype=torch.bfloat16),
    "least few of long rows": partial(first, 8, 3, 1111, largest=False),
    "first of rows in pieces": partial(first, 12, 1, 9001),
    "least of rows in pieces": partial(first, 3, 2, 8192, largest=False, dtype=torch.bfloat16),
    "most of a row": partial(first, 30, 4, 48, dtype=torch.int32),
    "all of a row": partial(first, 32, 4, 32),
    "elements by rank": ranks,
    "keys of 16 bits in pieces": partial(keys_in_pieces, 40_000),
    "keys of 32 bits in pieces": partial(keys_in_pieces, 70_000),
}


def wrong_with(case: Callable[[], None], trace: Path) -> str:
    """What is wrong with `case`; empty if it agrees with eager, and its rows were sorted in kernels."""
    # options are read from the environment at every compile
    os.environ["COILWORK_TRACE"] = str(trace)
    torch._dynamo.reset()
    try:
        with no_fallback():
            case()
    except Exception:  # noqa: BLE001 - the test that asked fails with it
        return traceback.format_exc()
    decisions = "".join(path.read_text() for path in trace.glob("*/*.decisions.txt"))
    made = [line.split()[0] for line in decisions.splitlines() if line.split()[1:2] == ["sort"]]
    return "" if made and set(made) == {"yes"} else f"sorts are not as expected:\n{decisions}"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    chosen = sys.argv[2:]
    print(
        json.dumps(
            {
                name: wrong_with(case, folder / str(number))
                for number, (name, case) in enumerate(CASES.items())
                if not chosen or name in chosen
            }
        )
    )
