"""A random program as a value: inputs with their layouts, steps as text, results; and its source as a
function.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

FLOATS = ("float32", "bfloat16", "float16", "float64")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
_NARROW = re.compile(r"torch\.(?:bfloat16|float16|float32)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A tensor argument.

    Attributes:
        name: of the argument.
        shape: elements per dimension.
        order: dimensions from the outermost in memory to the innermost.
        steps: per dimension, how much wider than dense its stride is; 0 repeats one element along it.
        offset: elements before the first in its storage.
        dtype: without `torch.`.
        fill: what it holds: "grid" (quarters between -2 and 2), "normal", "special" (with NaN, infinities,
            zeros of both signs), "small" and "wide" integers, "index:N" (positions below N), "permutation" of
            each row's positions.
        base: an input whose storage this one shares; none if empty.
    """

    name: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    steps: tuple[int, ...]
    offset: int
    dtype: str
    fill: str
    base: str = ""

    @property
    def stride(self) -> tuple[int, ...]:
        """Elements between neighbours, per dimension."""
        strides = [0] * len(self.shape)
        room = 1
        for dim in reversed(self.order):
            strides[dim] = room * self.steps[dim]
            if self.steps[dim]:
                room *= max(1, self.shape[dim]) * self.steps[dim]
        return tuple(strides)

    @property
    def span(self) -> int:
        """Elements of storage that it needs."""
        if 0 in self.shape:
            return self.offset
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))


def plain(name: str, shape: Sequence[int], dtype: str, fill: str) -> Input:
    """A contiguous input."""
    rank = len(shape)
    return Input(
        name=name,
        shape=tuple(shape),
        order=tuple(range(rank)),
        steps=(1,) * rank,
        offset=0,
        dtype=dtype,
        fill=fill,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One statement. `makes` are the names that it binds, `reads` those that it uses, `writes` those that it
    overwrites.
    """

    text: str
    makes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A function of tensors.

    Attributes:
        seed: decides the inputs' values.
        inputs, steps, results: what it takes, does and returns.
        dynamic: compiled for sizes that are not known.
        gradients: run backward as well, to every input of a float type.
        options: options of the compiler other than the defaults.
        sizes: other sizes to call the compiled program with: pairs of an old size and the new one.
        before: elements in each storage in front of what the inputs describe.
        device: of the inputs, and of everything else.
    """

    seed: int
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    dynamic: bool = False
    gradients: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    before: int = 0
    device: str = "cpu"

    def source(self) -> str:
        """The function `program`, as text."""
        arguments = ", ".join(value.name for value in self.inputs)
        body = [f"    {step.text}" for step in self.steps]
        returned = f"    return ({', '.join(self.results)}{',' if len(self.results) == 1 else ''})"
        return "\n".join([f"def program({arguments}):", *body, returned]) + "\n"

    def function(self, *, wide: bool = False) -> Callable[..., tuple[Tensor, ...]]:
        """The program as a function of eager torch; with `wide`, every float type in it is float64."""
        text = widened(self.source()) if wide else self.source()
        space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(compile(text, f"<fuzz {self.seed}>", "exec"), space)
        found: Callable[..., tuple[Tensor, ...]] = space["program"]
        return found

    def resized(self) -> Program:
        """The program with its other sizes; the same program if it has none."""
        sizes = dict(self.sizes)
        return replace(self, inputs=tuple(_resized(value, sizes) for value in self.inputs), sizes=())

    def elsewhere(self) -> Program:
        """The program with the same inputs, later in their storages, for which nobody compiles anew."""
        return replace(self, before=3, sizes=())

    def live(self) -> Program:
        """Without steps and inputs that no result and no write to an input depends on."""
        storages = {value.name: value.base or value.name for value in self.inputs}
        needed = set(self.results) | set(storages)
        kept: list[Step] = []
        for step in reversed(self.steps):
            if needed & {*step.makes, *step.writes}:
                kept.append(step)
                needed |= {*step.reads, *step.writes}
        used = set(self.results).union(*(({*s.reads, *s.writes}) for s in kept))
        bases = {value.base for value in self.inputs if value.name in used}
        inputs = tuple(v for v in self.inputs if v.name in used or v.name in bases)
        return replace(self, inputs=inputs, steps=tuple(reversed(kept)))


def widened(text: str) -> str:
    """`text` with float64 in the place of every narrower float type."""
    return _NARROW.sub("torch.float64", text)


def _resized(value: Input, sizes: Mapping[int, int]) -> Input:
    fill = value.fill
    if fill.startswith("index:"):
        bound = int(fill.removeprefix("index:"))
        fill = f"index:{sizes.get(bound, bound)}"
    return replace(value, shape=tuple(sizes.get(n, n) for n in value.shape), fill=fill)


def materialize(program: Program, *, wide: bool = False) -> list[Tensor]:
    """The inputs, the same at every call; with `wide`, floats are the same numbers in float64."""
    spans: dict[str, int] = {}
    for value in program.inputs:
        root = value.base or value.name
        spans[root] = max(spans.get(root, 0), value.span)
    storages = {
        value.name: _filled(value, spans[value.name], program.seed + zlib.crc32(value.name.encode()))
        for value in program.inputs
        if not value.base
    }
    storages = {
        name: torch.cat([s.new_zeros(program.before), s]).to(program.device) for name, s in storages.items()
    }
    if wide:
        storages = {name: s.double() if s.is_floating_point() else s for name, s in storages.items()}
    return [
        storages[value.base or value.name].as_strided(
            value.shape, value.stride, program.before + value.offset
        )
        for value in program.inputs
    ]


def _filled(value: Input, span: int, seed: int) -> Tensor:
    """Storage of `span` elements for `value`."""
    generator = torch.Generator().manual_seed(seed)
    dtype: torch.dtype = getattr(torch, value.dtype)
    kind, _, bound = value.fill.partition(":")

    def integers(low: int, high: int) -> Tensor:
        return torch.randint(low, high, (span,), generator=generator)

    match kind:
        case "index":
            return integers(0, max(1, int(bound))).to(dtype)
        case "permutation":
            row = value.shape[-1] if value.shape else 1
            keys = torch.rand(-(-span // max(1, row)), max(1, row), generator=generator)
            return keys.argsort(dim=1).reshape(-1)[:span].to(dtype)
        case "normal" | "special":
            numbers = torch.randn(span, generator=generator, dtype=torch.float32)
            if kind == "special":
                odd = torch.tensor(
                    [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, 2.0**-130],
                    dtype=torch.float32,
                )
                numbers = torch.where(integers(0, 6) == 0, odd[integers(0, len(odd))], numbers)
            return numbers.to(dtype)
        case "wide" if dtype is not torch.bool:
            info = torch.iinfo(dtype)
            least, most = max(info.min, -(2**40)), min(info.max, 2**40)
            return integers(least, most).to(dtype)
        case _ if dtype is torch.bool:
            return integers(0, 2).bool()
        case _ if dtype.is_floating_point:
            return (integers(-8, 9) / 4).to(dtype)
        case _:
            return integers(0 if dtype is torch.uint8 else -6, 9).to(dtype)
