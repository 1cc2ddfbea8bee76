"""A smaller program that fails in the same way: fewer results, operations and inputs, smaller and simpler
inputs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from integration_tests.fuzz.program import Input, Program, Step, materialize, plain

Fails = Callable[[Program], bool]


def shrink(program: Program, fails: Fails, *, seconds: float = 60.0) -> Program:
    """The smallest program found in the given time; `fails(program)` holds, and does for what is returned.

    Greedy: of the simpler programs that are one change away the first that still fails is taken, until none
    does.
    """
    deadline = time.monotonic() + seconds
    changed = True
    while changed:
        changed = False
        for candidates in (_results, _steps, _cuts, _settings, _inputs, _sizes):
            again = True
            while again:
                again = False
                for candidate in candidates(program):
                    if time.monotonic() > deadline:
                        return program
                    if candidate != program and fails(candidate):
                        program, changed, again = candidate, True, True
                        break
    return program


def _results(program: Program) -> Iterator[Program]:
    if len(program.results) > 1:
        half = len(program.results) // 2
        for part in (program.results[:half], program.results[half:]):
            yield replace(program, results=part).live()
        for name in program.results:
            rest = tuple(other for other in program.results if other != name)
            yield replace(program, results=rest).live()
    # What an earlier step makes may be wrong already.
    for step in program.steps:
        for name in step.makes:
            candidate = replace(program, results=(name,)).live()
            if len(candidate.steps) < len(program.steps):
                yield candidate


def _steps(program: Program) -> Iterator[Program]:
    """Without one step: what it makes is not used, or is an input instead."""
    read = {name for step in program.steps for name in (*step.reads, *step.writes)} | set(program.results)
    for position, step in enumerate(program.steps):
        rest = (*program.steps[:position], *program.steps[position + 1 :])
        if not set(step.makes) & read:
            yield replace(program, steps=rest).live()


def _cuts(program: Program) -> Iterator[Program]:
    """What a step makes becomes an input, late steps first: everything that only it needed goes."""
    values = _values(program)
    if values is None:
        return
    for position in reversed(range(len(program.steps))):
        step = program.steps[position]
        if not step.makes or not all(isinstance(values[name], Tensor) for name in step.makes):
            continue
        made = tuple(_input_like(name, values[name]) for name in step.makes)
        rest = (*program.steps[:position], *program.steps[position + 1 :])
        yield replace(program, inputs=(*program.inputs, *made), steps=rest).live()


def _values(program: Program) -> dict[str, Tensor] | None:
    """Every name's value, as it is made."""
    space: dict[str, Tensor] = dict(zip((v.name for v in program.inputs), materialize(program), strict=True))
    tools = {"torch": torch, "F": torch.nn.functional}
    try:
        for step in program.steps:
            exec(step.text, {**tools}, space)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, ZeroDivisionError):
        return None
    return space


def _input_like(name: str, value: Tensor) -> Input:
    """An input of the value's form, layout and dtype, holding something else."""
    rank = value.dim()
    order = tuple(sorted(range(rank), key=lambda dim: -value.stride(dim)))
    steps = tuple(0 if value.stride(dim) == 0 and value.shape[dim] > 1 else 1 for dim in range(rank))
    dtype = str(value.dtype).removeprefix("torch.")
    fill = "grid" if value.is_floating_point() else "small"
    if not value.is_floating_point() and value.dtype is not torch.bool and value.numel():
        least, most = value.min().item(), value.max().item()
        fill = f"index:{int(most) + 1}" if least >= 0 else fill
    return replace(plain(name, tuple(value.shape), dtype, fill), order=order, steps=steps)


def _settings(program: Program) -> Iterator[Program]:
    yield replace(program, options=())
    yield replace(program, sizes=())
    yield replace(program, dynamic=False, sizes=())
    yield replace(program, gradients=False)


def _inputs(program: Program) -> Iterator[Program]:
    """One input made simpler."""
    for position, value in enumerate(program.inputs):
        simpler = plain(value.name, value.shape, value.dtype, value.fill)
        steps = (1,) * len(value.shape)
        changes = [replace(value, base=""), simpler, replace(value, offset=0), replace(value, steps=steps)]
        if value.fill in ("normal", "special", "wide"):
            changes.append(replace(value, fill="grid" if "float" in value.dtype else "small"))
        if value.dtype in ("bfloat16", "float16", "float64"):
            changes.append(replace(value, dtype="float32"))
        for change in changes:
            if change != value:
                yield replace(
                    program, inputs=(*program.inputs[:position], change, *program.inputs[position + 1 :])
                )


def _sizes(program: Program) -> Iterator[Program]:
    """One size made smaller, wherever it stands: in shapes, and as a number in a step."""
    sizes = sorted({n for value in program.inputs for n in value.shape if n > 1}, reverse=True)
    for size in sizes:
        for less in dict.fromkeys((1, 2, 3, size // 4, size // 2, size * 3 // 4, size - 1)):
            if 0 < less < size:
                yield _with_size(program, size, less, everywhere=True)
                yield _with_size(program, size, less, everywhere=False)
    for position, value in enumerate(program.inputs):
        for dim, size in enumerate(value.shape):
            if size > 1:
                shape = (*value.shape[:dim], 1, *value.shape[dim + 1 :])
                rest = (*program.inputs[:position], replace(value, shape=shape))
                yield replace(program, inputs=(*rest, *program.inputs[position + 1 :]))


def _with_size(program: Program, size: int, less: int, *, everywhere: bool) -> Program:
    number = re.compile(rf"(?<![\w.]){size}(?![\w.])")

    def resized(value: Input) -> Input:
        fill = number.sub(str(less), value.fill.replace(":", ": ")).replace(": ", ":")
        return replace(value, shape=tuple(less if n == size else n for n in value.shape), fill=fill)

    def respelled(step: Step) -> Step:
        return replace(step, text=number.sub(str(less), step.text)) if everywhere else step

    others = tuple((less if old == size else old, new) for old, new in program.sizes)
    return replace(
        program,
        inputs=tuple(map(resized, program.inputs)),
        steps=tuple(map(respelled, program.steps)),
        sizes=others,
    )
