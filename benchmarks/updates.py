"""What updates in place move: `python -m benchmarks.updates [--target sm_90]`, a table in Markdown.

Each case is planned twice, with updates in place and without, and no GPU is needed. Bytes are those that the
plan reads and writes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.memory_bound.traffic import traffic
from benchmarks.planner import Planner
from coilwork.compile_options import CompileOptions
from coilwork_ir.index import as_int
from coilwork_ir.target import TARGETS

KIB: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function that updates tensors, and what makes its inputs."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What one call moves, launches and allocates."""

    moved_bytes: int
    launches: int
    peak_bytes: int


def cache_at_a_position(cache: Tensor, new: Tensor, at: Tensor) -> None:
    cache[:, :, at] = new


def cache_index_copy(cache: Tensor, new: Tensor, at: Tensor) -> None:
    cache.index_copy_(2, at, new)


def layers_of_a_cache(cache: Tensor, new: Tensor, at: Tensor) -> None:
    for layer in range(4):
        cache[layer][:, :, at] = new * layer


def rows_of_an_input(x: Tensor, v: Tensor) -> None:
    x[64:128] = v


def every_other_row(x: Tensor, v: Tensor) -> None:
    x[::2] = v


def two_scatters(x: Tensor, at: Tensor, v: Tensor) -> None:
    x[at] = v
    x[at + 1] = v * 2


def product_then_rows(x: Tensor, w: Tensor, at: Tensor, v: Tensor) -> Tensor:
    y = x @ w
    y[at] = v
    return y


def product_then_a_row(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    y = x @ w
    y[3] = v
    return y


def pieces_of_zeros(x: Tensor) -> Tensor:
    out = torch.zeros(3 * x.shape[0], x.shape[1], device=x.device)
    out[: x.shape[0]] = x.sin()
    out[x.shape[0] : 2 * x.shape[0]] = x.cos()
    return out


def old_value_returned(x: Tensor, at: Tensor, v: Tensor) -> Tensor:
    before = x.clone()
    x[at] = v
    return before


def _cache(*leading: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty(*leading, 1, 8, 2048, 128), torch.empty(1, 8, 1, 128), torch.tensor([7])


def _rows(count: int) -> tuple[Tensor, Tensor]:
    return torch.empty(8192, 512), torch.empty(count, 512)


def _positions() -> Tensor:
    return torch.arange(0, 128, 2)


CASES: Final = (
    Case(name="cache at a position", function=cache_at_a_position, inputs=_cache),
    Case(name="cache, `index_copy_`", function=cache_index_copy, inputs=_cache),
    Case(name="4 layers of one cache", function=layers_of_a_cache, inputs=lambda: _cache(4)),
    Case(name="64 rows of an input", function=rows_of_an_input, inputs=lambda: _rows(64)),
    Case(name="every other row of an input", function=every_other_row, inputs=lambda: _rows(4096)),
    Case(
        name="two `index_put_` into an input",
        function=two_scatters,
        inputs=lambda: (_rows(64)[0], _positions(), _rows(64)[1]),
    ),
    Case(
        name="64 rows of a product, by `index_put_`",
        function=product_then_rows,
        inputs=lambda: (torch.empty(8192, 512), torch.empty(512, 512), _positions(), torch.empty(64, 512)),
    ),
    Case(
        name="one row of a product",
        function=product_then_a_row,
        inputs=lambda: (torch.empty(8192, 512), torch.empty(512, 512), torch.empty(512)),
    ),
    Case(name="pieces of zeros", function=pieces_of_zeros, inputs=lambda: (torch.empty(4096, 512),)),
    Case(
        name="an input whose old value is returned",
        function=old_value_returned,
        inputs=lambda: (_rows(64)[0], _positions(), _rows(64)[1]),
    ),
)


def plan_case(case: Case, *, target: str, in_place: bool) -> Planned:
    """The plan of `case` for `target`."""
    torch._dynamo.reset()
    planner = Planner(target=target, options=CompileOptions(strict=True, reuse=in_place))
    torch.compile(case.function, backend=planner, dynamic=False)(*case.inputs())
    (program,) = planner.programs
    steps = traffic(program)
    peak = 0 if program.peak_bytes is None else as_int(program.peak_bytes)
    assert peak is not None, "sizes are known"
    return Planned(moved_bytes=sum(step.total for step in steps), launches=len(steps), peak_bytes=peak)


def table(target: str) -> str:
    """All cases, in Markdown."""
    lines = [
        "| update | KiB moved: by copies | in place | launches | in place | KiB allocated | in place |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        copies, done = (plan_case(case, target=target, in_place=flag) for flag in (False, True))
        cells = [
            f"{count:,}"
            for before, after in (
                (copies.moved_bytes // KIB, done.moved_bytes // KIB),
                (copies.launches, done.launches),
                (copies.peak_bytes // KIB, done.peak_bytes // KIB),
            )
            for count in (before, after)
        ]
        lines.append(f"| {case.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.updates", description=__doc__)
    parser.add_argument("--target", choices=sorted(TARGETS), default="sm_90")
    print(table(parser.parse_args().target))


if __name__ == "__main__":
    main()
