"""Index arithmetic against sympy, on what compiling a transformer asks of it.

    python benchmarks/index_arithmetic.py [--json] [--repeat 7] [--rounds 200]

Each operation runs in both, in this process, on the same inputs: every round has fresh range symbols (as
every buffer has; making them is not timed), both libraries keep their caches as they are, and the results are
compared on random integers. sympy gets its best form: integer, non-negative symbols, and torch's own FloorDiv
and ModularIndexing where torch is installed (they simplify), else `floor` and `Mod`. Both must end in the
normal form in which equal indices compare equal, as a compiler needs to tell whether two reads are one: sympy
by `expand`, ours has it. (Ours also cancels quotients and remainders that sympy leaves, notably with symbolic
sizes; nothing is deducted for that.) What is timed is the processor time of this process, which has one
thread; the median over `--repeat` runs of `--rounds` rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sympy

from coilwork_ir import index as ix

try:
    from torch.utils._sympy import functions as torch_functions
except ImportError:
    SYMPY_DIVISIONS = "floor and Mod"

    def sympy_div(a: Any, b: Any) -> Any:
        return sympy.floor(a / b)

    def sympy_mod(a: Any, b: Any) -> Any:
        return sympy.Mod(a, b)

else:
    SYMPY_DIVISIONS = "torch's FloorDiv and ModularIndexing"

    def sympy_div(a: Any, b: Any) -> Any:
        return torch_functions.FloorDiv(a, b)

    def sympy_mod(a: Any, b: Any) -> Any:
        return torch_functions.ModularIndexing(a, sympy.S.One, b)


Exprs = Sequence[Any]


class Ours:
    """How an operation is spelled in Coilwork."""

    def __init__(self) -> None:
        self.sizes = {"B": ix.symbol("B", lo=1), "T": ix.symbol("T", lo=1)}

    def ranges(self, prefix: str, extents: Exprs) -> list[ix.Expr]:
        return [ix.symbol(f"{prefix}{k}", extent=ix.as_expr(e)) for k, e in enumerate(extents)]

    def div(self, a: Any, b: Any) -> Any:
        return ix.floordiv(a, b)

    def mod(self, a: Any, b: Any) -> Any:
        return ix.mod(a, b)

    def subs(self, e: Any, old: Exprs, new: Exprs) -> Any:
        return ix.substitute(e, dict(zip(old, new)))

    def strides(self, e: Any, ranges: Exprs) -> list[Any]:
        affine = ix.find_coefficients(e, ranges)
        return [] if affine is None else list(affine[0])

    def normal(self, es: list[Any]) -> list[Any]:
        return es

    def zero(self, e: Any) -> bool:
        return ix.as_int(e) == 0

    def value(self, e: Any, env: dict[str, int]) -> int:
        return ix.evaluate(ix.as_expr(e), env)


class Sympy:
    """How a compiler built on sympy spells it."""

    def __init__(self) -> None:
        self.sizes = {name: sympy.Symbol(name, integer=True, positive=True) for name in ("B", "T")}

    def ranges(self, prefix: str, extents: Exprs) -> list[Any]:
        return [sympy.Symbol(f"{prefix}{k}", integer=True, nonnegative=True) for k in range(len(extents))]

    def div(self, a: Any, b: Any) -> Any:
        return sympy_div(a, b)

    def mod(self, a: Any, b: Any) -> Any:
        return sympy_mod(a, b)

    def subs(self, e: Any, old: Exprs, new: Exprs) -> Any:
        return sympy.sympify(e).xreplace(dict(zip(old, new)))

    def strides(self, e: Any, ranges: Exprs) -> list[Any]:
        zeros = dict.fromkeys(ranges, sympy.S.Zero)
        base = e.xreplace(zeros)
        return [e.xreplace({**zeros, r: sympy.S.One}) - base for r in ranges]

    def normal(self, es: list[Any]) -> list[Any]:
        return [sympy.expand(e) for e in es]

    def zero(self, e: Any) -> bool:
        return bool(sympy.expand(e) == 0)

    def value(self, e: Any, env: dict[str, int]) -> int:
        e = sympy.sympify(e)
        return int(e.subs({s: env[s.name] for s in e.free_symbols}))


def linear(ranges: Exprs, sizes: Exprs) -> Any:
    """The row-major linear index."""
    index = ranges[0]
    for r, n in zip(ranges[1:], sizes[1:]):
        index = index * n + r
    return index


def unflatten(lang: Any, flat: Any, sizes: Exprs) -> list[Any]:
    """The coordinates of a linear index."""
    coordinates = []
    for n in reversed(sizes[1:]):
        coordinates.append(lang.mod(flat, n))
        flat = lang.div(flat, n)
    return [flat, *reversed(coordinates)]


HEADS, HEAD = 12, 64
C = HEADS * HEAD


def build_linear(lang: Any, b: Any, t: Any, i: Exprs) -> list[Any]:
    """Row-major index of a [B, T, 3C] buffer."""
    return [linear(i, (b, t, 3 * C))]


def split_heads(lang: Any, b: Any, t: Any, i: Exprs) -> list[Any]:
    """[B, T, 3C] -> q of [B, heads, T, C/heads]: view, permute, read index."""
    source = linear((i[0], i[2], i[1] * HEAD + i[3]), (b, t, 3 * C))
    return [source, *lang.strides(source, i)]


def merge_heads(lang: Any, b: Any, t: Any, i: Exprs) -> list[Any]:
    """[B, heads, T, d] -> permute -> [B, T, C]: read through a flattening view (quotient and remainder)."""
    head, lane = lang.div(i[2], HEAD), lang.mod(i[2], HEAD)
    return [linear((i[0], head, i[1], lane), (b, HEADS, t, HEAD))]


def flatten_then_view(lang: Any, b: Any, t: Any, i: Exprs) -> list[Any]:
    """Coordinates -> linear index -> coordinates again: everything should cancel."""
    return unflatten(lang, linear(i, (b, t, HEADS, HEAD)), (b, t, HEADS, HEAD))


def view_then_flatten(lang: Any, b: Any, t: Any, xs: Exprs) -> list[Any]:
    """Linear index -> coordinates -> linear index: quotients and remainders recombine."""
    (x,) = xs
    return [linear(unflatten(lang, x, (b * t, HEADS, HEAD)), (b * t, HEADS, HEAD))]


def inline_fresh(lang: Any, b: Any, t: Any, i: Exprs, j: Exprs) -> list[Any]:
    """Inlining: the producer's index with the consumer's fresh ranges."""
    return [lang.subs(linear(i, (b, t, C)), i, j)]


def inline_through_view(lang: Any, b: Any, t: Any, i: Exprs, j: Exprs) -> list[Any]:
    """Inlining a [B, T, heads, d] producer into a [B*T, C] consumer."""
    at = (lang.div(j[0], t), lang.mod(j[0], t), lang.div(j[1], HEAD), lang.mod(j[1], HEAD))
    return [lang.subs(linear(i, (b, t, HEADS, HEAD)), i, at)]


def read_strides(lang: Any, b: Any, t: Any, i: Exprs) -> list[Any]:
    """Stride per range of an index."""
    return [*lang.strides(linear(i, (b, t, HEADS, HEAD)), i)]


def is_contiguous(lang: Any, b: Any, t: Any, i: Exprs) -> list[Any]:
    """Is a given index the row-major one?"""
    difference = (i[0] * (t * C) + i[1] * C + i[2]) - linear(i, (b, t, C))
    return [1 if lang.zero(difference) else 0]


def transposed_key(lang: Any, b: Any, t: Any, i: Exprs) -> list[Any]:
    """k^T of the packed projection: [B, heads, d, T], read at its permuted place."""
    source = linear((i[0], i[3], i[1] * HEAD + i[2] + C), (b, t, 3 * C))
    return [source, *lang.strides(source, i)]


def split_reduction(lang: Any, b: Any, t: Any, i: Exprs, j: Exprs) -> list[Any]:
    """A [B*T, C] reduction split in four parts, its index substituted."""
    return [lang.subs(linear(i, (b * t, C)), i, (j[0], j[1] * (C // 4) + j[2]))]


def tile_1d(lang: Any, b: Any, t: Any, i: Exprs, xs: Exprs) -> list[Any]:
    """A [B, T, C] body put on one flat range."""
    (x,) = xs
    index = linear((i[1], i[0], i[2]), (t, b, C))
    return [lang.subs(index, i, unflatten(lang, x, (b, t, C)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`run(lang, B, T, *ranges)`; `extents(B, T)` are those of each group of ranges."""

    run: Callable[..., list[Any]]
    extents: Callable[[Any, Any], tuple[Exprs, ...]]

    @property
    def name(self) -> str:
        return self.run.__name__

    def ranges(self, lang: Any, b: Any, t: Any, prefix: str) -> list[Exprs]:
        return [lang.ranges(prefix + "_" * k, e) for k, e in enumerate(self.extents(b, t))]


OPERATIONS: tuple[Operation, ...] = (
    Operation(run=build_linear, extents=lambda b, t: ((b, t, 3 * C),)),
    Operation(run=split_heads, extents=lambda b, t: ((b, HEADS, t, HEAD),)),
    Operation(run=transposed_key, extents=lambda b, t: ((b, HEADS, HEAD, t),)),
    Operation(run=merge_heads, extents=lambda b, t: ((b, t, C),)),
    Operation(run=flatten_then_view, extents=lambda b, t: ((b, t, HEADS, HEAD),)),
    Operation(run=view_then_flatten, extents=lambda b, t: ((b * t * C,),)),
    Operation(
        run=inline_fresh,
        extents=lambda b, t: (
            (b, t, C),
            (b, t, C),
        ),
    ),
    Operation(
        run=inline_through_view,
        extents=lambda b, t: (
            (b, t, HEADS, HEAD),
            (b * t, C),
        ),
    ),
    Operation(
        run=split_reduction,
        extents=lambda b, t: (
            (b * t, C),
            (b * t, 4, C // 4),
        ),
    ),
    Operation(
        run=tile_1d,
        extents=lambda b, t: (
            (b, t, C),
            (b * t * C,),
        ),
    ),
    Operation(run=read_strides, extents=lambda b, t: ((b, t, HEADS, HEAD),)),
    Operation(run=is_contiguous, extents=lambda b, t: ((b, t, C),)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operation: microseconds in either library, and their quotient."""

    operation: str
    sizes: str
    ours_us: float
    sympy_us: float
    ratio: float


def check(operation: Operation, ours: Any, theirs: Any, static: bool) -> None:
    """Both give the same numbers. Raises AssertionError when they don't."""
    rng = random.Random(operation.name)
    a_sizes, b_sizes = (
        ((8, 128), (8, 128)) if static else (tuple(ours.sizes.values()), tuple(theirs.sizes.values()))
    )
    a = operation.run(ours, *a_sizes, *operation.ranges(ours, a_sizes[0], a_sizes[1], "check"))
    b = operation.run(theirs, *b_sizes, *operation.ranges(theirs, b_sizes[0], b_sizes[1], "check"))
    for _ in range(5):
        env = {"B": 8, "T": 128}
        # Within the promises of every operation's ranges.
        for k, top in ((0, 8), (1, 4), (2, 12), (3, 64)):
            env[f"check{k}"] = rng.randrange(top)
            env[f"check_{k}"] = rng.randrange(top)
        left, right = [ours.value(x, env) for x in a], [theirs.value(x, env) for x in b]
        if left != right:
            raise AssertionError(f"{operation.name}: {left} != {right}")


def time_us(operation: Operation, lang: Any, sizes: Exprs, *, rounds: int, repeat: int, tag: str) -> float:
    """Median microseconds of processor time of one call, fresh symbol names each."""
    samples = []
    for k in range(repeat):
        fresh = [operation.ranges(lang, sizes[0], sizes[1], f"{tag}{k}x{n}i") for n in range(rounds)]
        start = time.process_time()
        for ranges in fresh:
            lang.normal(operation.run(lang, sizes[0], sizes[1], *ranges))
        samples.append((time.process_time() - start) / rounds * 1e6)
    return statistics.median(samples)


def measure(*, rounds: int, repeat: int) -> list[Row]:
    ours, theirs = Ours(), Sympy()
    rows = []
    for operation in OPERATIONS:
        for static in (True, False):
            check(operation, ours, theirs, static)
            kind = "static" if static else "symbolic"
            tag = f"{operation.name}_{kind}_"
            a: Exprs = (8, 128) if static else tuple(ours.sizes.values())
            b: Exprs = (8, 128) if static else tuple(theirs.sizes.values())
            x = time_us(operation, ours, a, rounds=rounds, repeat=repeat, tag=tag)
            y = time_us(operation, theirs, b, rounds=max(rounds // 10, 5), repeat=repeat, tag=tag)
            rows.append(Row(operation=operation.name, sizes=kind, ours_us=x, sympy_us=y, ratio=y / x))
    return rows


def geomean(rows: Sequence[Row]) -> float:
    return math.exp(statistics.fmean(math.log(r.ratio) for r in rows))


def markdown(rows: Sequence[Row]) -> str:
    lines = [
        (
            f"sympy {sympy.__version__}, divisions by {SYMPY_DIVISIONS}; processor microseconds per call, "
            "fresh symbols"
        ),
        "",
        "| operation | sizes | Coilwork us | sympy us | ratio |",
        "|---|---|---:|---:|---:|",
    ]
    lines += [
        f"| {r.operation} | {r.sizes} | {r.ours_us:.1f} | {r.sympy_us:.1f} | {r.ratio:.1f} |" for r in rows
    ]
    lines.append(f"| **geometric mean** | | | | **{geomean(rows):.1f}** |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    parser.add_argument("--rounds", type=int, default=200, help="calls per sample (a tenth of it for sympy)")
    parser.add_argument("--repeat", type=int, default=7, help="samples")
    args = parser.parse_args()
    # What the imports left is no part of either's garbage collection.
    gc.collect()
    gc.freeze()
    rows = measure(rounds=args.rounds, repeat=args.repeat)
    if args.json:
        print(json.dumps({"rows": [asdict(r) for r in rows], "geomean": geomean(rows)}, indent=1))
    else:
        print(markdown(rows))


if __name__ == "__main__":
    main()
