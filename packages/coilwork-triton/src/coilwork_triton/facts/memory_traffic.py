"""Analyse how a kernel reads and writes memory: which ranges are contiguous, and which tensors only pass
through.

`share_unit_strides` gives the share of all bytes at unit stride along each range. Proposals rest on it: which
ranges have a tile of their own, which tile is along memory, how wide accesses are, whether a row stays on
chip. It is a guess where sizes are open, and correctness does not rest on it. `find_streaming_args` names the
tensors whose cache lines are to be evicted first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from coilwork_ir.index import Expr, as_int, evaluate, find_bounds, find_run_stride, multiply_all
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Load, Scalar, Sort, find_index_symbols, iterate_postorder
from coilwork_ir.target import TURNED_SHARE, Target
from coilwork_triton.facts.kernel_analysis import list_roots

# Unit strides


# Blocks have three dimensions where nothing is reduced.
_MOST_TRANSPOSED: Final = 2


def share_unit_strides(kernel: Kernel, likely: Mapping[Expr, int], *, unknown: int) -> Mapping[str, float]:
    """Return the share of bytes at unit stride along each range of `kernel`, by its name, 0 to 1.

    Each load or store counts once, with as many elements as the ranges have points along which its place
    varies. `likely` is what sizes likely are, and `unknown` what others count as.
    """
    ranges = tuple(r.symbol for r in kernel.ranges)
    guess = _Guess(likely, unknown)
    itemsize = {arg.name: arg.dtype.itemsize for arg in kernel.args}
    sums, everything = dict.fromkeys(ranges, 0), 0
    for place in _places(kernel, frozenset(ranges)):
        direct = place.index.free_symbols
        varying = [s for s in ranges if s in direct or s in place.looked_up]
        touched = itemsize[place.name]
        for one in varying:
            touched *= max(1, guess.extent(one))
        everything += touched
        for one in varying:
            sums[one] += touched if guess.is_unit(place.index, one) else 0
    return {one.name: round(sums[one] / max(1, everything), 6) for one in ranges}


def find_transposed_ranges(kernel: Kernel, likely: Mapping[Expr, int], *, unknown: int) -> tuple[str, ...]:
    """Names of the ranges before the innermost one, inner ones first, two at most, that have blocks of their
    own: they carry bytes at unit stride that are not so along the innermost range, as of a transposed
    operand. A buffer counts once, though all elements of a window are read from it.

    Rows that are reduced share programs otherwise, and have none.
    """
    if any(r.kind != "parallel" for r in kernel.ranges) or len(kernel.ranges) < 2:
        return ()
    *outer, inner = (r.symbol for r in kernel.ranges)
    guess = _Guess(likely, unknown)
    itemsize = {arg.name: arg.dtype.itemsize for arg in kernel.args}
    transposed, everything = dict.fromkeys(outer, 0), 0
    places = {
        (place.name, place.index - place.index.constant, place.looked_up): place
        for place in _places(kernel, frozenset((*outer, inner)))
    }
    for place in places.values():
        touched = itemsize[place.name]
        for one in (*outer, inner):
            varies = one in place.index.free_symbols or one in place.looked_up
            touched *= max(1, guess.extent(one)) if varies else 1
        everything += touched
        if not guess.is_unit(place.index, inner):
            for one in outer:
                transposed[one] += touched if guess.is_unit(place.index, one) else 0
    found: list[str] = []
    for one in reversed(outer[-_MOST_TRANSPOSED:]):
        if transposed[one] < TURNED_SHARE * everything or not everything:
            break
        found.append(one.name)
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A load or store: its tensor, its offset, and the ranges along which looked-up positions vary."""

    name: str
    index: Expr
    looked_up: frozenset[Expr]


def _places(kernel: Kernel, ranges: frozenset[Expr]) -> Iterable[_Place]:
    """Distinct loads and stores."""
    found: dict[tuple[bool, str, Expr, frozenset[Expr]], _Place] = {}

    def note(stores: bool, name: str, index: Expr, indirect: tuple[Scalar, ...]) -> None:
        looked_up = find_index_symbols(indirect) & ranges if indirect else frozenset()
        place = _Place(name=name, index=index, looked_up=looked_up)
        found.setdefault((stores, name, index, looked_up), place)

    for store in kernel.stores:
        note(True, store.buffer, store.index, store.indirect)
    for node in iterate_postorder(list_roots(kernel)):
        if isinstance(node, Load):
            note(False, node.buffer, node.index[0], node.indirect)
    return found.values()


@dataclass(slots=True)
class _Guess:
    """Guesses the values of expressions over sizes; a range in them counts as half its extent."""

    likely: Mapping[Expr, int]
    unknown: int
    known: dict[Expr, int] = field(default_factory=dict)

    def extent(self, range_symbol: Expr) -> int:
        """Points of a range."""
        return 1 if range_symbol.extent is None else self.value(range_symbol.extent)

    def is_unit(self, index: Expr, along: Expr) -> bool:
        """Tell if neighbours along a range are neighbours in memory."""
        step = find_run_stride(index, along) if along in index.free_symbols else None
        return step is not None and self.value(step) == 1

    def value(self, expr: Expr) -> int:
        """Return the likely value of `expr`."""
        exact = as_int(expr)
        if exact is not None:
            return exact
        if expr not in self.known:
            try:
                self.known[expr] = evaluate(expr, {s.name: self._symbol(s) for s in expr.free_symbols})
            except ArithmeticError:
                self.known[expr] = self.unknown
        return self.known[expr]

    def _symbol(self, size: Expr) -> int:
        if size.extent is not None:
            return self.extent(size) // 2
        low, high = find_bounds(size)
        guess = self.likely.get(size) or self.unknown
        return min(max(guess, low or 0), guess if high is None else high)


# Eviction


def find_streaming_args(kernel: Kernel, roots: Sequence[Scalar], target: Target) -> frozenset[str]:
    """Return the arguments of `kernel` whose cache lines are to be evicted first: read once, larger than the
    cache.

    What kernels before left in the cache then stays there: some of it has yet to be written to memory, which
    takes time from reading. On an H200 sums of columns of 134 MB take 38.4 us instead of 42.3 after a kernel
    that filled the cache with zeros. Reading so is a few percent slower: 537 MB take 134.8 us instead of
    128.8, and kernels that write as much as they read take up to 7 % longer.
    """
    memory = target.machine.memory
    size = {a.name: (as_int(a.span) or 0) * a.dtype.itemsize for a in kernel.args}
    read = sum(size[a.name] for a in kernel.args if a.role == "in")
    written = sum(size[a.name] for a in kernel.args if a.role != "in")
    if read > memory.streamed_caches * target.l2_bytes or written > memory.streamed_written_share * read:
        return frozenset()
    values = tuple(iterate_postorder(tuple(roots)))
    if any(isinstance(node, Sort) for node in values):
        # memory is not what sorts wait for
        return frozenset()
    loads = [node for node in values if isinstance(node, Load)]
    times = Counter(node.buffer for node in loads)
    extents = {r.symbol: r.extent for r in kernel.ranges}
    found = set[str]()
    for node in loads:
        if times[node.buffer] > 1 or node.indirect or size[node.buffer] <= target.l2_bytes:
            continue
        others = multiply_all(e for r, e in extents.items() if r not in node.index[0].free_symbols)
        if as_int(others) == 1:
            found.add(node.buffer)
    return frozenset(found)
