"""Losses of a case under a compiler beside eager's and float64's; whether all of it was compiled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch._dynamo.utils import counters

from coilwork.backend import backend as ours
from integration_tests.ranks.training import Setting, Step
from integration_tests.ranks.transformer import Scale
from integration_tests.ranks.world import Rank

# by dtype of the case: what rounding does to losses even where eager happens to have none
FLOORS: Final = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float64: 1e-12}
# a curve that moves less says nothing of gradients
LEAST_MOVE: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Attributes:
    worst, eager_worst: largest distance of a loss to float64's, relative to the largest loss.
    graphs, breaks: graphs that the compiler was given, and how often Dynamo ended one early.
    """

    worst: float
    eager_worst: float
    move: float
    graphs: int
    breaks: int
    compile_s: float
    limit: float

    @property
    def is_right(self) -> bool:
        return self.worst <= self.limit


def compile_with(
    backend: str, *, slow_s: float = 0.0, given: list[Any] | None = None, **options: Any
) -> Callable[..., Any]:
    """What `Setting.compile` is under a back end's name; `eager` compiles nothing.

    Of ours, each graph takes `slow_s` seconds longer, and is added to `given`.
    """
    if backend == "eager":
        return lambda function: function
    chosen: Any = backend
    if backend == "coilwork":

        def chosen(gm: Any, inputs: Any, **rest: Any) -> Any:
            time.sleep(slow_s)
            if given is not None:
                given.append(gm)
            return ours(gm, inputs, **rest)

    return lambda function: torch.compile(function, backend=chosen, dynamic=False, options=options or None)


def losses(step: Step, steps: int) -> list[float]:
    """The losses of that many steps."""
    return [float(loss) for loss in (step(number) for number in range(steps))]


def compare(
    me: Rank,
    build: Callable[[Setting], Step],
    scale: Scale,
    *,
    steps: int,
    half: bool = False,
    slow_s: float = 0.0,
) -> Compared:
    """Train three times: exactly, in eager mode, and compiled. `half`: the case computes in bf16 whatever
    the scale's dtype is.

    Raises:
        CompileError: a graph cannot be compiled.
        ValueError: the losses do not move, so that they say nothing.
    """
    eager = compile_with("eager")
    exact_scale = replace(scale, dtype=torch.float64)
    exact = losses(build(Setting(me=me, scale=exact_scale, compile=eager, exact=True)), steps)
    plain = losses(build(Setting(me=me, scale=scale, compile=eager)), steps)
    torch._dynamo.reset()
    counters.clear()
    given: list[Any] = []
    compile_ours = compile_with("coilwork", strict=True, slow_s=slow_s, given=given)
    step = build(Setting(me=me, scale=scale, compile=compile_ours))
    start = time.perf_counter()
    found = [float(step(0))]
    compile_s = time.perf_counter() - start
    found += [float(step(number)) for number in range(1, steps)]
    size = max(map(abs, exact))
    worst, eager_worst = (
        max(abs(a - b) for a, b in zip(curve, exact, strict=True)) / size for curve in (found, plain)
    )
    move = (max(exact) - min(exact)) / size
    if move < LEAST_MOVE:
        raise ValueError(f"losses move by {move:.1e} of themselves only")
    floor = FLOORS[torch.bfloat16 if half else scale.dtype]
    return Compared(
        worst=worst,
        eager_worst=eager_worst,
        move=move,
        graphs=len(given),
        breaks=sum(map(int, counters["graph_break"].values())),
        compile_s=compile_s,
        limit=2 * eager_worst + floor,
    )
