"""Sums that are linear in statistics of their rows: when these move behind the sum, and what it comes to."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from declared import schedule
from graph_builder import Builder
from known_values import tensors_of

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.kernels import Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.nodes import Decision
from coilwork_ir.loops import Graph
from coilwork_ir.scalar import Scalar, const, op
from coilwork_ir.target import get_target

F32, F64 = DType.F32, DType.F64
H200 = get_target("sm_90")
# rows of more than four elements are long
SHORT = 16


def losses(
    build: Builder,
    rows: int,
    columns: int,
    term: Callable[..., Scalar],
    *,
    dtype: DType = F64,
    inputs: tuple[str, ...] = ("x",),
    log: str = "rsqrt",
) -> Graph:
    """The sum of `term`, of an element and its place, along rows of `x` whose log of sums of exponentials is
    `top` and `log`, or another function.
    """
    at = build.at
    for name in inputs:
        build.input(name, rows, columns, dtype=dtype)
    build.reduce("top", "max", [rows], [columns], lambda i, c: at("x", i, c), dtype=dtype)
    build.reduce(
        "total", "sum", [rows], [columns], lambda i, c: op("exp", op("sub", at("x", i, c), at("top", i))),
        dtype=dtype
    )  # fmt: skip
    build.pointwise("log", [rows], lambda i: op(log, at("total", i)), dtype=dtype)

    def log_softmax(i: Expr, c: Expr) -> Scalar:
        return op("sub", op("sub", at("x", i, c), at("top", i)), at("log", i))

    build.reduce("loss", "sum", [rows], [columns], lambda i, c: term(i, c, log_softmax(i, c)), dtype=dtype)
    return build.graph("loss")


def decided(made: Schedule) -> list[Decision]:
    return [d for d in made.decisions if d.rule == "linear-sums"]


TERMS = {
    "smoothed": lambda at: lambda i, c, l: l,
    "negated": lambda at: lambda i, c, l: op("neg", l),
    "scaled": lambda at: lambda i, c, l: op("mul", const(0.25, F64), l),
    "soft labels": lambda at: lambda i, c, l: op("mul", at("w", i, c), l),
    "labels last": lambda at: lambda i, c, l: op("mul", l, op("exp", at("w", i, c))),
    "both": lambda at: lambda i, c, l: op("sub", op("mul", at("w", i, c), l), l),
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda x: x, "finite"),
        (lambda x: x + 4096, "finite"),
        (lambda x: x.index_fill(1, torch.tensor([0]), -math.inf), "-inf"),
        (lambda x: x.index_fill(1, torch.tensor([3]), -math.inf), "-inf"),
        (lambda x: x.index_fill(1, torch.tensor([0]), math.inf), "nan"),
        (lambda x: x.index_fill(1, torch.tensor([0]), math.nan), "nan"),
        (lambda x: torch.full_like(x, -math.inf), "nan"),
    ],
)
def test_numbers_are_as_good_as_before(
    build: Builder, change: Callable[[torch.Tensor], torch.Tensor], expected: str
) -> None:
    """Also where all of a row have a large number in common, and what is infinite stays so."""
    graph = losses(build, 6, 4000, TERMS["smoothed"](build.at), dtype=F32, log="log")
    x = change(torch.randn(6, 4000, generator=torch.Generator().manual_seed(1)))
    made = schedule(graph, H200, kept_bytes=SHORT)
    assert decided(made)
    (found,) = tensors_of(interpret_schedule(made, [x], {}))
    exact = torch.log_softmax(x.double(), 1).sum(1)
    if expected == "finite":
        torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=0)
    else:
        assert str(found[0].item()) == expected and bool((found.isnan() == exact.isnan()).all())
