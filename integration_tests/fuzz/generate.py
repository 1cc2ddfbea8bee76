"""From a seed to a program: inputs, some tens of operations, results."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import torch

from integration_tests.fuzz import elementwise, structural
from integration_tests.fuzz.draw import Draw, NoValueError, random_input
from integration_tests.fuzz.program import Program

# How often each family is drawn.
FAMILIES: tuple[tuple[Callable[[Draw], None], int], ...] = (
    (elementwise.unary, 12),
    (elementwise.binary, 14),
    (elementwise.with_number, 5),
    (elementwise.compare_with_number, 3),
    (elementwise.where, 5),
    (elementwise.cast, 5),
    (elementwise.reduce, 12),
    (elementwise.cumulative, 4),
    (elementwise.several, 2),
    (elementwise.product, 2),
    (structural.view, 14),
    (structural.strided, 1),
    (structural.rearranged, 7),
    (structural.like, 2),
    (structural.joined, 5),
    (structural.split, 3),
    (structural.indexed, 6),
    (structural.scattered, 4),
    (structural.chosen, 1),
    (structural.listed, 2),
    (structural.in_place, 10),
)
# Programs of these seeds have tensors of one size in all dimensions, in which ranges are mistaken for each
# other most easily.
EQUAL_SIZES_FROM = 1_000_000
EQUAL_SIZES = (*FAMILIES, (elementwise.crossed, 20))
SIZES = (2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 32, 33, 64, 65, 100, 129)
MOST_STEPS = 24
MOST_INPUT = 20_000
MOST_RESIZED = 2_000_000


def generate(seed: int) -> Program:
    """The program of `seed`: the same in every process."""
    rng = random.Random(seed)
    draw = Draw(rng, seed)
    sizes = _equal_inputs(draw, rng) if seed >= EQUAL_SIZES_FROM else _inputs(draw, rng)
    families, weights = zip(*(EQUAL_SIZES if seed >= EQUAL_SIZES_FROM else FAMILIES))
    wanted = rng.randint(2, MOST_STEPS)
    for _ in range(4 * wanted):
        if len(draw.steps) >= wanted:
            break
        try:
            rng.choices(families, weights)[0](draw)
        except NoValueError:
            continue
    return _finished(draw, rng, sizes)


def _inputs(draw: Draw, rng: random.Random) -> list[int]:
    """Adds inputs; returns the sizes they are made of."""
    sizes = rng.sample(SIZES, rng.randint(1, 3))
    if rng.random() < 0.12:
        sizes.append(rng.choice((255, 513, 1025, 2048, 4099, 16384)))
    palette = [*sizes, *sizes, 1, *((0,) if rng.random() < 0.08 else ())]
    main = rng.choice(("float32", "float32", "float32", "float32", "bfloat16", "float64", "int64", "float16"))
    if rng.random() < 0.06:
        shape = rng.choice(
            ((300_000,), (2, 100_003), (100_003, 2), (1000, 257), (257, 1000), (64, 64, 64), (3, 70_001))
        )
        draw.add_input(random_input(rng, "x0", shape, main))
    for _ in range(rng.randint(1, 4)):
        rank = rng.choices(range(5), (1, 3, 5, 4, 2))[0]
        shape = tuple(rng.choice(palette) for _ in range(rank))
        while _elements(shape) > MOST_INPUT:
            shape = shape[1:]
        dtype = main if rng.random() < 0.6 else rng.choice(elementwise.DTYPES)
        draw.add_input(random_input(rng, f"x{len(draw.inputs)}", shape, dtype))
    if rng.random() < 0.08:
        _share(draw, rng)
    return sizes


def _equal_inputs(draw: Draw, rng: random.Random) -> list[int]:
    size = rng.choice(SIZES[:12])
    main = rng.choice(("float32", "float32", "float32", "bfloat16", "float64", "int64"))
    for number in range(rng.randint(1, 3)):
        rank = rng.choices((1, 2, 3, 4), (1, 3, 5, 3 if size < 13 else 0))[0]
        draw.add_input(random_input(rng, f"x{number}", (size,) * rank, main))
    return [size]


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _share(draw: Draw, rng: random.Random) -> None:
    """One more input, in the memory of another."""
    base = rng.choice([value for value in draw.inputs if not value.base])
    offset = base.offset + rng.choice((0, 0, 1, 2, base.span))
    draw.share_input(replace(base, name=f"x{len(draw.inputs)}", offset=offset, base=base.name))


def _finished(draw: Draw, rng: random.Random, sizes: list[int]) -> Program:
    made = [name for step in draw.steps for name in step.makes]
    read = {name for step in draw.steps for name in step.reads}
    results = [name for name in made if name not in read or rng.random() < 0.15]
    results += [value.name for value in draw.inputs if rng.random() < 0.05]
    results = list(dict.fromkeys(results)) or [draw.inputs[0].name]
    dynamic = rng.random() < 0.3
    options: tuple[tuple[str, object], ...] = ()
    if rng.random() < 0.25:
        options = (
            rng.choice((("numerics", "eager"), ("numerics", "strict"), ("fusion", False), ("reuse", False))),
        )
    program = draw.program(results, ()).live()
    if dynamic:
        others = [n for n in SIZES if n not in sizes]
        program = replace(program, dynamic=True, sizes=tuple(zip(sizes, rng.sample(others, len(sizes)))))
        if any(_elements(value.shape) > MOST_RESIZED for value in program.resized().inputs):
            program = replace(program, sizes=())
    gradients = rng.random() < 0.2 and any(
        torch.is_floating_point(draw.tensor(name)) for name in program.results
    )
    return replace(program, gradients=gradients, options=options)
