"""Search on a device: build neighbours in parallel, leave out those that cannot win, time the others.

Whatever goes wrong with one configuration, at building, loading, launching or timing, takes it out of the
search and nothing else. The call that started the search still happens, in a configuration that works.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_runtime.errors import KernelBuildError, KernelLaunchError
from coilwork_runtime.triton_kernels.autotune.coordinate_descent import (
    Bench,
    Config,
    SearchResult,
    Space,
    Trial,
    descend,
    make_config_key,
)
from coilwork_runtime.triton_kernels.compilation import GpuBinary

# Rounds of a second measurement, in turns.
TURNS: Final = 3
# Of a multiprocessor of NVIDIA's; elsewhere a rule of thumb.
REGISTERS: Final = 65536
THREADS: Final = 2048
# A neighbour with less than this share of the threads that the current best keeps in flight is not timed.
LEAST_RESIDENCE: Final = 0.5

Measure = Callable[[Callable[[], None]], float]
Call = Callable[[], None]


def _ignore_trial(kernel: str, trials: int, best: Trial) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The limits of a search.

    Attributes:
        most: configurations that it builds per kernel, beside the candidates.
        seconds: time after which it starts no other round.
        told: hears of each round: the kernel's name, trials so far, and the best one.
    """

    most: int = 64
    seconds: float = 120.0
    told: Callable[[str, int, Trial], None] = _ignore_trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A configuration that can be called; `threads` are those of a block, the other numbers those of a
    thread.
    """

    config: Config
    call: Call
    threads: int
    registers: int
    spill_bytes: int

    def trial(self) -> Trial:
        """Return the trial before it is timed."""
        return Trial(
            config=self.config,
            registers=self.registers,
            spill_bytes=self.spill_bytes,
            threads=self.threads,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """The functions that make configurations ready.

    Attributes:
        compile: several at once, each to a binary or the reason why not.
        load: onto the device. Raises KernelLaunchError.
    """

    compile: Callable[[Sequence[Config]], Sequence[GpuBinary | KernelBuildError]]
    load: Callable[[Config, GpuBinary], Ready]


def search(
    name: str,
    candidates: Sequence[Ready],
    space: Space,
    workshop: Workshop,
    *,
    limits: Search,
    measure: Measure,
    clock: Callable[[], float] = time.monotonic,
) -> SearchResult | None:
    """Return the best configuration of the kernel `name` around `candidates`; None if none of these can be
    timed.
    """
    shelf = {make_config_key(one.config): one.call for one in candidates}
    started = clock()

    def evaluate(configs: Sequence[Config], current: Trial) -> list[Trial]:
        trials = []
        for config, binary in zip(configs, workshop.compile(configs), strict=True):
            if isinstance(binary, KernelBuildError):
                trials.append(Trial(config=config, reason=f"does not build: {_first_line(binary)}"))
                continue
            try:
                ready = workshop.load(config, binary)
            except KernelLaunchError as error:
                trials.append(Trial(config=config, reason=f"does not load: {_first_line(error)}"))
                continue
            shelf[make_config_key(config)] = ready.call
            hopeless = explain_hopeless(ready.trial(), current)
            trials.append(
                replace(ready.trial(), reason=hopeless)
                if hopeless
                else time_trial(ready.trial(), ready.call, measure)
            )
        return trials

    def again(one: Trial, other: Trial) -> tuple[float, float]:
        seen: tuple[list[float], list[float]] = ([], [])
        for _ in range(TURNS):
            for trial, times in zip((one, other), seen):
                repeated = time_trial(trial, shelf[make_config_key(trial.config)], measure)
                times.append(float("inf") if repeated.milliseconds is None else repeated.milliseconds)
        return min(seen[0]), min(seen[1])

    bench = Bench(
        evaluate=evaluate,
        again=again,
        told=lambda trials, best: limits.told(name, trials, best),
        over=lambda: clock() - started > limits.seconds,
    )
    proposed = [time_trial(one.trial(), one.call, measure) for one in candidates]
    return descend(proposed, space, bench, most=limits.most)


def explain_hopeless(trial: Trial, current: Trial) -> str:
    """Return the reason why `trial` cannot be better than `current`, by what the compiler made of it; empty
    if it may be.
    """
    if trial.spill_bytes > current.spill_bytes:
        return f"spills {trial.spill_bytes} bytes per thread, the best {current.spill_bytes}"
    own, best = count_resident_threads(trial), count_resident_threads(current)
    if own < LEAST_RESIDENCE * best:
        return f"{own} threads of {trial.registers} registers fit, of the best {best}"
    return ""


def count_resident_threads(trial: Trial) -> int:
    """Return how many threads registers leave room for on a multiprocessor."""
    blocks = THREADS // max(1, trial.threads)
    if trial.registers and trial.threads:
        blocks = min(blocks, REGISTERS // (trial.registers * trial.threads))
    return blocks * trial.threads


def time_trial(trial: Trial, call: Call, measure: Measure) -> Trial:
    """Return `trial` with its time, or with the reason why it has none."""
    try:
        return replace(trial, milliseconds=measure(call), reason="")
    # what torch and the launcher raise for a launch that the device refuses, and for one that fails on it
    except RuntimeError as error:
        return replace(trial, milliseconds=None, reason=f"does not run: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
