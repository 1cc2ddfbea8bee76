"""Graphs in short, and their schedules compared with them by the slow evaluator."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import pytest

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import evaluate
from coilwork_ir.kernels import Schedule
from coilwork_ir.loops import Graph
from coilwork_ir.target import Target, Targets

# pytest's importlib mode puts no test folder on the path, and these tests share modules.
sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from declared import ScheduleFields
    from graph_builder import Builder, Compare


@pytest.fixture
def compare() -> Compare:
    """Schedules a graph, runs both on made-up inputs, and compares everything."""
    from random import Random

    from declared import schedule
    from slow_evaluator import evaluate_graph, evaluate_schedule, well_formed

    from coilwork_ir.loops.verify import verify_graph
    from coilwork_ir.target import get_target
    from coilwork_scheduler import ScheduleOptions

    def check(
        graph: Graph,
        *,
        name: str | Target | Targets = "sm_90",
        sizes: Mapping[str, int] = {},
        kept_bytes: int | None = None,
        **settings: Unpack[ScheduleFields],
    ) -> Schedule:
        rng = Random(7)
        given: dict[str, list[float]] = {}
        for entry in (*graph.inputs, *(c.buffer for c in graph.constants)):
            if isinstance(entry, Buffer):
                count = evaluate(entry.span, sizes)
                if entry.dtype.is_integer:
                    given[entry.name] = [rng.randrange(4) for _ in range(count)]
                else:
                    given[entry.name] = [round(rng.uniform(0.1, 2), 3) for _ in range(count)]
        made = schedule(
            graph,
            get_target(name) if isinstance(name, str) else name,
            ScheduleOptions(**settings),
            kept_bytes=kept_bytes,
            observe=lambda _, passed: verify_graph(passed),
        )
        for kernel in made.kernels:
            well_formed(kernel)
        expected = evaluate_graph(graph, given, sizes)
        got = evaluate_schedule(made, given, sizes)
        for one, other in zip(expected[0] + expected[1], got[0] + got[1], strict=True):
            assert other == pytest.approx(one, rel=1e-9, abs=1e-9, nan_ok=True)
        assert [c for c in got[2] if "draw" in c] == [c for c in expected[2] if "draw" in c]
        return made

    return check


@pytest.fixture
def build() -> Builder:
    """An empty graph to fill."""
    from graph_builder import Builder

    return Builder()
