"""The state of a program that is being made: its values so far, run in their own types and in float64 side by
side.

Whether two floats compare equal, and what floor makes of one, says nothing about a compiler when rounding
decided the float. So each storage is known as exact (every value in it is what float64 gives, and comes from
such) or not, and operations that jump take exact values alone.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from integration_tests.fuzz.program import INTEGERS, Input, Program, Step, materialize, plain, widened

MOST_ELEMENTS = 400_000
MOST_MADE = 50_000_000
MOST_ABS = 1e4
_NAME = re.compile(r"\b[xv]\d+\b")
SCALARS = ("2.0", "0.5", "-1.25", "3.0", "-1", "2", "3", "1", "0.1")
# Functions that no kernel rounds as another does: that one of them is what float64 gives is luck.
_APPROXIMATE = re.compile(
    r"\b(a?(sin|cos|tan)h?2?|sinc|exp\w*|log(?!ical)\w*|pow|hypot|erf\w*|lgamma|digamma|i0|rsqrt|xlogy|\w*norm|normalize"
    r"|\w*sigmoid|soft(max|min|plus)|\w*gelu|silu|mish|glu|[cs]?elu|tanhshrink|(std|var)(_mean)?|rad2deg|deg2rad)\(|\*\*"
)
Condition = Callable[[Tensor], bool]


class NoValueError(Exception):
    """Nothing drawn so far is of the kind that an operation needs, or eager refuses the operation."""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """What divisions of integers give, within the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Draw:
    """Values by name and the steps that made them; `rng` decides everything."""

    def __init__(self, rng: random.Random, seed: int) -> None:
        self.rng = rng
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self._seed = seed
        self._names = 0
        self._native: dict[str, Any] = {}
        self._wide: dict[str, Any] = {}
        self._rounded: set[int] = set()

    # ---- values
    # ------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Every value so far."""
        return [name for name in self._native if _NAME.fullmatch(name)]

    def tensor(self, name: str) -> Tensor:
        """The value as eager has it."""
        found: Tensor = self._native[name]
        return found

    def exact(self, name: str) -> bool:
        """Whether rounding has no part in the value."""
        return _storage(self.tensor(name)) not in self._rounded

    def pick(self, condition: Condition = lambda value: True, *, exact: bool = False) -> str:
        """A value for which `condition` holds, late ones more often."""
        found = [n for n in self.names() if condition(self.tensor(n)) and (not exact or self.exact(n))]
        if not found:
            raise NoValueError
        return max(self.rng.choice(found), self.rng.choice(found), key=found.index)

    def floats(self, *, exact: bool = False, rank: int = 0) -> str:
        """A float of at least `rank` dimensions."""
        return self.pick(lambda v: v.is_floating_point() and v.dim() >= rank, exact=exact)

    def integers(self, *, rank: int = 0) -> str:
        """An integer, no boolean, of at least `rank` dimensions."""
        return self.pick(
            lambda v: not v.is_floating_point() and v.dtype is not torch.bool and v.dim() >= rank
        )

    def beside(self, name: str, condition: Condition = lambda value: True, *, exact: bool = False) -> str:
        """A value that broadcasts with `name`."""
        shape = self.tensor(name).shape

        def fits(value: Tensor) -> bool:
            pairs = zip(reversed(shape), reversed(value.shape))
            return all(m == n or 1 in (m, n) for m, n in pairs) and condition(value)

        found = self.pick(fits, exact=exact)
        # smaller ones that are too large are seen when they are made
        if math.prod(torch.broadcast_shapes(shape, self.tensor(found).shape)) > MOST_MADE:
            raise NoValueError(f"{name} and {found} give too many elements")
        return found

    def dim(self, name: str) -> int:
        """A dimension, often counted from the end."""
        rank = self.tensor(name).dim()
        if rank == 0:
            return -1
        dim = self.rng.randrange(rank)
        return dim - rank if self.rng.random() < 0.5 else dim

    def scalar(self) -> str:
        return self.rng.choice(SCALARS)

    def new_input(self, shape: Sequence[int], dtype: str, fill: str) -> str:
        """Another input of the program, contiguous."""
        value = plain(f"x{len(self.inputs)}", shape, dtype, fill)
        self.add_input(value)
        return value.name

    def index(self, shape: Sequence[int], below: int) -> str:
        """An input of positions below `below`."""
        if below < 1:
            raise NoValueError
        return self.new_input(shape, self.rng.choice(("int64", "int64", "int32")), f"index:{below}")

    def add_input(self, value: Input) -> None:
        """An input made before."""
        self.inputs.append(value)
        for space, wide in ((self._native, False), (self._wide, True)):
            space[value.name] = materialize(self.program((), ()), wide=wide)[-1]

    def share_input(self, value: Input) -> None:
        """An input in the memory of one before, which may need more of it. No step has been made yet."""
        assert not self.steps
        self.inputs.append(value)
        self._replay()

    # ---- steps
    # -------------------------------------------------------------------------------------------------

    def make(self, text: str, count: int = 1) -> tuple[str, ...]:
        """Bind the `count` results of the expression `text`."""
        names = tuple(f"v{self._names + i}" for i in range(count))
        self._names += count
        self._run(Step(text=f"{', '.join(names)} = {text}", makes=names, reads=_read(text)))
        return names

    def write(self, name: str, text: str) -> None:
        """A statement that overwrites (a view of) `name`."""
        aliases = [n for n in self.names() if _storage(self.tensor(n)) == _storage(self.tensor(name))]
        self._run(Step(text=text, reads=_read(text), writes=(name, *(n for n in aliases if n != name))))

    def program(self, results: Sequence[str], sizes: Sequence[tuple[int, int]]) -> Program:
        """What was drawn, returning `results`."""
        return Program(
            seed=self._seed,
            inputs=tuple(self.inputs),
            steps=tuple(self.steps),
            results=tuple(results),
            sizes=tuple(sizes),
        )

    def _run(self, step: Step) -> None:
        try:
            self._execute(step)
        except NoValueError:
            self._replay()
            raise
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, ZeroDivisionError) as e:
            self._replay()
            raise NoValueError(str(e)) from e
        self.steps.append(step)

    def _execute(self, step: Step) -> None:
        tools = {"torch": torch, "F": torch.nn.functional}
        exec(step.text, {**tools}, self._native)
        with default_dtype(torch.float64):
            exec(widened(step.text), {**tools}, self._wide)
        changed = (*step.makes, *step.writes)
        for name in changed:
            if not self._fits(self._native[name], self._wide[name]):
                raise NoValueError(f"{name} is too large, or of another form in float64")
        rounded = any(not self.exact(name) for name in step.reads)
        rounded |= any(_is_rounded(self._native[name], self._wide[name]) for name in changed)
        rounded |= bool(_APPROXIMATE.search(step.text))
        if rounded:
            self._rounded |= {_storage(self._native[name]) for name in changed}

    def _fits(self, native: Any, wide: Any) -> bool:
        if not isinstance(native, Tensor) or not isinstance(wide, Tensor) or native.shape != wide.shape:
            return False
        if native.numel() > MOST_ELEMENTS or native.dim() > 6 or native.is_complex():
            return False
        if not native.is_floating_point():
            return torch.equal(native, wide)
        finite = wide[torch.isfinite(wide)]
        return finite.numel() == 0 or finite.abs().max().item() < MOST_ABS

    def _replay(self) -> None:
        """Run all steps anew, after one that failed and may have overwritten something."""
        program = self.program((), ())
        for space, wide in ((self._native, False), (self._wide, True)):
            space.clear()
            values = materialize(program, wide=wide)
            space.update({value.name: t for value, t in zip(self.inputs, values, strict=True)})
        self._rounded.clear()
        for step in self.steps:
            self._execute(step)


def same_numbers(native: Tensor, wide: Tensor) -> bool:
    """Whether float64 gives just the same; NaN is NaN."""
    if not native.is_floating_point():
        return torch.equal(native, wide)
    return torch.equal(torch.nan_to_num(native.double(), 7.77e77), torch.nan_to_num(wide.double(), 7.77e77))


def _is_rounded(native: Tensor, wide: Tensor) -> bool:
    """Whether float64 gives other numbers. In float64 itself: whether there are some that need more digits
    than float32 has.
    """
    if native.dtype is torch.float64:
        return not same_numbers(native.float(), native)
    return not same_numbers(native, wide)


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr() or id(value)


def _read(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_NAME.findall(text)))


def random_input(rng: random.Random, name: str, shape: tuple[int, ...], dtype: str) -> Input:
    """An input with a layout drawn at random, dense and contiguous more often than not."""
    order = list(range(len(shape)))
    steps = [1] * len(shape)
    offset = 0
    if rng.random() < 0.4:
        rng.shuffle(order)
    if rng.random() < 0.25:
        steps = [rng.choice((1, 1, 2, 3, 0)) for _ in shape]
    if rng.random() < 0.25:
        offset = rng.choice((1, 2, 3, 4, 8, 17))
    if dtype == "bool":
        fill = "small"
    elif dtype in INTEGERS:
        fill = rng.choice(("small", "small", "small", "wide"))
    else:
        fill = rng.choices(("grid", "normal", "special"), (6, 4, 2))[0]
    made = plain(name, shape, dtype, fill)
    return replace(made, order=tuple(order), steps=tuple(steps), offset=offset)
