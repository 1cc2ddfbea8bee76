"""Coordinate descent over configurations: to the best neighbour, and on, until no neighbour is better.

A neighbour is a step along one parameter, or along two at once. The search knows nothing of devices: its
caller gives what builds and times configurations, so that tables of times test it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.manifest.size_bytecode import SizeBytecode
from coilwork_runtime.triton_kernels.compilation import OPTIONS
from coilwork_runtime.triton_kernels.versions import read_values

Config = Mapping[str, int]
WARPS: Final = "num_warps"


@dataclass(frozen=True, slots=True)
class Space:
    """All configurations of a kernel that may be tried.

    Attributes:
        values: what each parameter may be, ascending.
        parameters: the names that limits read.
        limits: of these, each left one is at most the right one.
    """

    values: Mapping[str, tuple[int, ...]]
    parameters: tuple[str, ...] = ()
    limits: tuple[tuple[SizeBytecode, SizeBytecode], ...] = ()

    @staticmethod
    def from_spec(spec: KernelSpec) -> Space:
        """Return the space that the first version of a kernel declares; without one, there is nothing around
        its candidates.
        """
        if not spec.versions:
            return Space({})
        values = read_values(spec.versions[0].mapping)
        # in the order of the kernel's parameters
        named = {name: values[name] for name in spec.configs[0] if name in values}
        return Space(named, spec.parameters, spec.versions[0].limits)

    def allows(self, config: Config) -> bool:
        """Tell if `config` is within the space and its limits."""
        inside = all(config.get(name) in known for name, known in self.values.items())
        if not inside or not self.limits:
            return inside
        chosen = tuple(config.get(name, 0) for name in self.parameters)
        return all(left.evaluate((), chosen) <= right.evaluate((), chosen) for left, right in self.limits)

    def steps(self, config: Config) -> Iterator[Config]:
        """Yield the configurations one value up or down along one parameter."""
        for name in self.values:
            for direction in (1, -1):
                yield from self._move(config, {name: direction})

    def double_steps(self, config: Config) -> Iterator[Config]:
        """Yield the configurations two steps away: a block and the warps that share it, one side of a block
        for another, or one parameter twice.
        """
        blocks = [name for name in self.values if name not in OPTIONS]
        for name in blocks:
            for direction in (1, -1):
                yield from self._move(config, {name: direction, WARPS: direction})
        for grown, shrunk in itertools.permutations(blocks, 2):
            yield from self._move(config, {grown: 1, shrunk: -1})
        for name in self.values:
            for direction in (2, -2):
                yield from self._move(config, {name: direction})
        for name in blocks:
            for direction in (2, -2):
                yield from self._move(config, {name: direction, WARPS: direction // 2})

    def _move(self, config: Config, directions: Mapping[str, int]) -> Iterator[Config]:
        changed = dict(config)
        for name, direction in directions.items():
            known = self.values.get(name, ())
            if config.get(name) not in known:
                return
            place = known.index(config[name]) + direction
            if not 0 <= place < len(known):
                return
            changed[name] = known[place]
        if self.allows(changed):
            yield changed


# ---- descent ----


# A move must gain this much, twice measured: below it, noise would lead the way, and each step costs builds.
GAIN: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One configuration that was looked at.

    Attributes:
        config: which.
        milliseconds: per call; None if it was not timed, and then `reason` says why.
        registers: per thread.
        spill_bytes: per thread, of values that did not stay in registers.
        threads: per block.
    """

    config: Config
    milliseconds: float | None = None
    registers: int = 0
    spill_bytes: int = 0
    threads: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The result of a search: the best trial, the trials of the candidates, and the others in the order of
    time.
    """

    best: Trial
    proposed: tuple[Trial, ...]
    tried: tuple[Trial, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The functions of a device that the search calls.

    Attributes:
        evaluate: builds and times configurations, beside the current best.
        again: milliseconds of two that were timed, measured anew in turns.
        told: hears of each round: trials so far, and the current best.
        over: the time is up.
    """

    evaluate: Callable[[Sequence[Config], Trial], Sequence[Trial]]
    again: Callable[[Trial, Trial], tuple[float, float]]
    told: Callable[[int, Trial], None]
    over: Callable[[], bool]


def descend(proposed: Sequence[Trial], space: Space, bench: Bench, *, most: int) -> SearchResult | None:
    """Return the best configuration found with `most` trials beyond those of `proposed`; None if nothing
    could be timed.

    Ties go to what is earlier: a candidate before its neighbours, a better guess before a worse one.
    """
    current = find_fastest_trial(proposed)
    if current is None:
        return None
    seen = {make_config_key(trial.config) for trial in proposed}
    tried: list[Trial] = []
    while not bench.over():
        after = None
        for around in (space.steps, space.double_steps):
            wanted = _drop_seen(around(current.config), seen, most - len(tried))
            if not wanted:
                continue
            seen |= {make_config_key(config) for config in wanted}
            trials = bench.evaluate(wanted, current)
            tried += trials
            after = _better(trials, current, bench)
            bench.told(len(proposed) + len(tried), after or current)
            if after is not None or bench.over():
                break
        if after is None:
            break
        current = after
    return SearchResult(best=current, proposed=tuple(proposed), tried=tuple(tried))


def find_fastest_trial(trials: Iterable[Trial]) -> Trial | None:
    """Return the trial that takes least time. A later one counts only if it gains `GAIN` over the first that
    was timed.
    """
    timed = [(trial.milliseconds, trial) for trial in trials if trial.milliseconds is not None]
    if not timed:
        return None
    least, best = min(timed, key=lambda pair: pair[0])
    return best if least < timed[0][0] * (1 - GAIN) else timed[0][1]


def make_config_key(config: Config) -> tuple[tuple[str, int], ...]:
    """Return the same key for the same configuration, whatever the order of its parameters."""
    return tuple(sorted(config.items()))


def _drop_seen(configs: Iterable[Config], seen: set[tuple[tuple[str, int], ...]], room: int) -> list[Config]:
    """Return at most `room` of `configs`, none of them seen, none twice."""
    unseen = {make_config_key(config): config for config in configs if make_config_key(config) not in seen}
    return list(unseen.values())[: max(0, room)]


def _better(trials: Sequence[Trial], current: Trial, bench: Bench) -> Trial | None:
    """Return the best of `trials` if it beats `current` in a second measurement, too; else the next one, if
    that does.
    """
    assert current.milliseconds is not None
    timed = [(t.milliseconds, t) for t in trials if t.milliseconds is not None]
    for milliseconds, trial in sorted(timed, key=lambda pair: pair[0]):
        if milliseconds >= current.milliseconds * (1 - GAIN):
            return None
        own, other = bench.again(trial, current)
        if own < other * (1 - GAIN):
            return trial
    return None
