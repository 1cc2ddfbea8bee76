"""The configurations around one: a step along a parameter, or along two of them at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.manifest.size_code import SizeCode
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
    limits: tuple[tuple[SizeCode, SizeCode], ...] = ()

    @staticmethod
    def of(spec: KernelSpec) -> Space:
        """The space that the first version of a kernel declares; without one, there is nothing around its
        candidates.
        """
        if not spec.versions:
            return Space({})
        values = read_values(spec.versions[0].mapping)
        # in the order of the kernel's parameters
        named = {name: values[name] for name in spec.configs[0] if name in values}
        return Space(named, spec.parameters, spec.versions[0].limits)

    def allows(self, config: Config) -> bool:
        """True if `config` is within the space and its limits."""
        inside = all(config.get(name) in known for name, known in self.values.items())
        if not inside or not self.limits:
            return inside
        chosen = tuple(config.get(name, 0) for name in self.parameters)
        return all(left.evaluate((), chosen) <= right.evaluate((), chosen) for left, right in self.limits)

    def steps(self, config: Config) -> Iterator[Config]:
        """One parameter, one value up or down."""
        for name in self.values:
            for direction in (1, -1):
                yield from self._moved(config, {name: direction})

    def double_steps(self, config: Config) -> Iterator[Config]:
        """Two at once: a block and the warps that share it, one side of a block for another, or one parameter
        twice.
        """
        blocks = [name for name in self.values if name not in OPTIONS]
        for name in blocks:
            for direction in (1, -1):
                yield from self._moved(config, {name: direction, WARPS: direction})
        for grown, shrunk in itertools.permutations(blocks, 2):
            yield from self._moved(config, {grown: 1, shrunk: -1})
        for name in self.values:
            for direction in (2, -2):
                yield from self._moved(config, {name: direction})
        for name in blocks:
            for direction in (2, -2):
                yield from self._moved(config, {name: direction, WARPS: direction // 2})

    def _moved(self, config: Config, directions: Mapping[str, int]) -> Iterator[Config]:
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
