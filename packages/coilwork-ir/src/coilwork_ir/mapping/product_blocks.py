"""Blocks of matrix products: the sides of a kernel that is one, and which blocks to try for it, best guess
first.

- Skinny ones, of at most 64 rows, are a walk over the other factor, which is read once: a program takes a
  strip of it, up to 256 bytes deep, with several such blocks on their way. Narrow strips, so that there are
  some for each multiprocessor; what is still missing to fill the device are parts of the sum, which the
  scheduler cuts.
- Products with short sums, such as many small ones, are bound by memory: small blocks, of which a
  multiprocessor has several, so that some load while others store.
- Others are bound by the matrix units. A block of 128 x 256 results reads its factors least often and is the
  most that the registers of two groups of four warps hold. Where the last of these would leave
  multiprocessors idle, a model of the time (`model_blocks_us`) chooses smaller ones.
- In f32 there are no units that multiply exactly: each thread has a square of results in registers.

A template may name blocks of its own (`coilwork_ir.kernels.Proposal`); these are what others get.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int, evaluate, find_bounds, multiply_all
from coilwork_ir.kernels.nodes import Candidate, Kernel, Range
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.mapping.arithmetic import Specialise, Unit
from coilwork_ir.mapping.directive import Directive
from coilwork_ir.mapping.nodes import Mapping
from coilwork_ir.mapping.text import format_mapping
from coilwork_ir.mapping.threads import Warps
from coilwork_ir.mapping.tiling import Loop, Tile
from coilwork_ir.scalar import Contraction, Load, Scalar, find_contractions, find_parts, iterate_postorder
from coilwork_ir.target import Target

LEAST_SIDE: Final = 16
"""The least side of a block that matrix units take."""

RESULTS_PER_THREAD: Final = 128
"""Results that a thread has at most, in registers of 4 bytes."""

SHORT_SUMS: Final = 256
"""Terms up to which sums are short: products of so few are bound by memory."""

COPY_ENGINE: Final = "tma"
"""The feature of targets that have an engine which copies blocks of matrices."""

WARP_GROUPS: Final = "wgmma"
"""The feature of targets on which groups of four warps multiply blocks in shared memory."""

LAYOUT_BYTES: Final = 17 * 1024
"""Shared memory beside stages where warps have roles: for results on their way to another layout, and
barriers.
"""

MOST_STAGES: Final = 6
"""Blocks of terms that may be on their way at a time."""

UNKNOWN_SIDE: Final = 1024
"""What a side of unknown length is taken to have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """The contractions `nodes` of a kernel, and the ranges of their rows, columns, sum, and of all others."""

    nodes: tuple[Contraction, ...]
    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    axes: tuple[Range, ...]
    others: tuple[Range, ...]

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Sizes in memory of an element of all left factors, and of all right ones."""
        left, right = (
            sum(_memory_bytes(factor, factor.dtype) for factor in dict.fromkeys(factors))
            for factors in ([node.left for node in self.nodes], [node.right for node in self.nodes])
        )
        return left, right

    @property
    def dtype(self) -> DType:
        """The type of the factors; the widest one, if there are several."""
        return max((node.left.dtype for node in self.nodes), key=lambda dtype: dtype.itemsize)

    @property
    def unit(self) -> Unit:
        """The directive that says which units multiply."""
        return Unit(unit="mma" if self.dtype.itemsize <= 2 else "fma")


def get_contraction(kernel: Kernel) -> Factors:
    """Return the contractions of `kernel`, which has some.

    Raises:
        EmitError: their factors share ranges in no way that products do, or products are added in no f32.
    """
    nodes = find_contractions(list_kernel_roots(kernel))
    assert nodes
    parallel = [r.symbol for r in kernel.ranges if r.kind == "parallel"]
    node = nodes[0]
    parts = find_parts(node.left, node.right, parallel, node.axes)
    if parts is None or any(find_parts(o.left, o.right, parallel, o.axes) != parts for o in nodes):
        raise EmitError("contraction", "the factors do not tell rows, columns and a batch apart")
    for one in nodes:
        if one.dtype is not DType.F32:
            raise EmitError(
                "contraction", f"no products of {one.left.dtype.text} that are added in {one.dtype.text}"
            )
    ranges = {r.symbol: r for r in kernel.ranges}
    known = frozenset((*parts.rows, *parts.columns, *node.axes))
    return Factors(
        nodes=nodes,
        rows=tuple(ranges[s] for s in parts.rows),
        columns=tuple(ranges[s] for s in parts.columns),
        axes=tuple(ranges[s] for s in node.axes),
        # ranges of one point belong to no part
        others=tuple(r for r in kernel.ranges if r.symbol not in known),
    )


def list_names(kernel: Kernel, ranges: tuple[Range, ...]) -> tuple[str, ...]:
    """Names of `ranges`, outermost first."""
    wanted = {r.symbol for r in ranges}
    return tuple(r.symbol.name for r in kernel.ranges if r.symbol in wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The amount of work of a contraction.

    Attributes:
        rows, columns, length: estimated points.
        left_bytes, right_bytes: size in memory of an element of all left factors, and of all right ones.
        dtype: what is multiplied.
        sums: how many sums a program has, each of them of the same rows and columns.
        others: points of the batch.
    """

    rows: int
    columns: int
    length: int
    left_bytes: int
    right_bytes: int
    dtype: DType
    sums: int = 1
    others: int = 1

    def term_bytes(self, rows: int, columns: int) -> int:
        """Bytes that one term of a block's sums takes in shared memory."""
        return rows * self.left_bytes + columns * self.right_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The way in which sums become results.

    Attributes:
        operations: weighted operations on all results.
        loads: what is read at each result, in units of the result's bytes.
        stores: what is written, in the same units; 1 at least.
    """

    operations: float = 0.0
    loads: float = 0.0
    stores: float = 1.0


PLAIN: Final = Finish()
"""Sums are rounded and stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Blocks of one program: results in rows and columns, terms at a time, and how many of these are on their
    way.

    Attributes:
        rows, columns: results of a program.
        depth: terms that are multiplied at a time.
        warps: of a program.
        stages: blocks of terms on their way at a time.
        roles: of the warps, which are then those of a group; None if all do the same.
        reason: why they are tried.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    roles: Specialise | None = None
    reason: str = ""


def is_bound_by_memory(rows: int, columns: int, length: int, target: Target) -> bool:
    """True for a product whose memory traffic takes longer than its arithmetic: few rows, or short sums."""
    return length <= SHORT_SUMS or is_skinny(rows, columns, target)


def is_skinny(rows: int, columns: int, target: Target) -> bool:
    """True for a product that is bound by reading one of its factors."""
    return min(rows, columns) <= target.machine.products.skinny_rows


def propose_blocks(work: Work, target: Target) -> tuple[Blocks, ...]:
    """Blocks to try for `work`. Each fits the shared memory of `target` with all its stages."""
    if is_skinny(work.rows, work.columns, target):
        blocks = _skinny(work, target)
    else:
        blocks = _exact(work) if work.dtype is DType.F32 else _square(work, target)
    return tuple(dict.fromkeys(_fit_blocks(block, work, target) for block in blocks))


def propose_candidates(kernel: Kernel, target: Target) -> tuple[Candidate, ...]:
    """`propose_blocks` of `kernel`, a product, as a template names them."""
    factors = get_contraction(kernel)
    blocks = propose_blocks(compute_work(factors), target)
    return tuple(name_blocks(kernel, factors, block) for block in blocks)


def name_blocks(kernel: Kernel, factors: Factors, blocks: Blocks) -> Candidate:
    """Return a candidate for `kernel`, a product of `factors`, that names `blocks`."""
    directives: tuple[Directive, ...] = (
        Tile(ranges=list_names(kernel, factors.columns), by=blocks.columns),
        Tile(ranges=list_names(kernel, factors.rows), by=blocks.rows),
        Loop(ranges=list_names(kernel, factors.axes), by=blocks.depth, stages=blocks.stages),
        *(() if blocks.roles is None else (blocks.roles,)),
        Warps(count=blocks.warps),
    )
    text = "  ".join(format_mapping(Mapping(directives=directives)).splitlines())
    return Candidate(directives=text, reason=blocks.reason)


def compute_work(factors: Factors) -> Work:
    """Return the amount of work of the product of `factors`."""
    points = find_whole_sides(factors)
    left, right = factors.memory_bytes
    return Work(
        rows=_estimate(points["y"]),
        columns=_estimate(points["x"]),
        length=_estimate(points["r"]),
        left_bytes=left,
        right_bytes=right,
        dtype=factors.dtype,
        sums=len(factors.nodes),
        others=_estimate(points["z"]),
    )


def _estimate(numel: Expr) -> int:
    exact = as_int(numel)
    if exact is not None:
        return exact
    return max(1, evaluate(numel, {s.name: _typical(s) for s in numel.free_symbols}))


def _typical(size: Expr) -> int:
    low, high = find_bounds(size)
    return max(1, low or 1, min(UNKNOWN_SIDE, UNKNOWN_SIDE if high is None else high))


def find_whole_sides(factors: Factors) -> dict[str, Expr]:
    """Return the points of each side, by the letter of its tile."""
    sides = {"y": factors.rows, "x": factors.columns, "r": factors.axes, "z": factors.others}
    return {letter: multiply_all(r.extent for r in side) for letter, side in sides.items()}


def _memory_bytes(factor: Scalar, dtype: DType) -> int:
    """Size of an element of the largest thing that `factor` reads, by the ranges it varies along, else of
    `dtype`.
    """
    loads = [node for node in iterate_postorder((factor,)) if isinstance(node, Load)]
    most = max((len(node.index[0].free_symbols) for node in loads), default=0)
    sizes = [node.dtype.itemsize for node in loads if len(node.index[0].free_symbols) == most]
    return max(sizes, default=dtype.itemsize)


def _skinny(work: Work, target: Target) -> list[Blocks]:
    short = max(LEAST_SIDE, _round_up(min(work.rows, work.columns)))
    right = work.rows <= work.columns
    each_bytes = work.right_bytes if right else work.left_bytes
    if work.sums > 1:
        each_bytes = work.dtype.itemsize
    depth = target.machine.products.strip_depth_bytes // each_bytes
    # every strip reads the other factor again, from the L2 cache: the more rows that has, the wider strips
    # are
    if short <= 16:
        shapes = ((32, depth, 4, 4), (64, depth, 4, 3), (32, depth // 2, 4, 5))
    elif short <= 32:
        shapes = ((64, depth // 2, 4, 4), (32, depth // 2, 4, 5), (128, depth // 2, 4, 3))
    else:
        shapes = ((128, depth // 2, 4, 3), (64, depth // 2, 4, 4), (128, depth // 4, 4, 4))
    blocks = [
        _block(short, long, deep, warps, stages, "strips of the longer factor are read once")
        for long, deep, warps, stages in shapes
    ]
    return blocks if right else [replace(b, rows=b.columns, columns=b.rows) for b in blocks]


def _square(work: Work, target: Target) -> list[Blocks]:
    if work.length <= SHORT_SUMS:
        why = "sums are short: some programs load while others store"
        return [_block(128, 64, 64, 4, 2, why), _block(64, 128, 64, 4, 2, why)]
    why = "the fewest turns of all multiprocessors, and the largest blocks"
    shapes = [(128, 256, 8, 3), (128, 128, 4, 4), (64, 128, 4, 4)]
    blocks = [
        fit_registers(_block(rows, columns, 64, 8 if work.sums > 1 else warps, stages, why), work, target)
        for rows, columns, warps, stages in shapes
    ]
    # a third was never the fastest, and these take longest to compile
    plain = sorted(blocks, key=lambda block: model_blocks_us(block, work, target))[:2]
    roles = sorted(_specialise(work, target), key=lambda block: model_blocks_us(block, work, target))[:1]
    if roles and model_blocks_us(roles[0], work, target) <= model_blocks_us(plain[0], work, target):
        return [*roles, *plain]
    return plain


def _specialise(work: Work, target: Target) -> list[Blocks]:
    """Blocks for warps that have roles, where factors of 16 bits can come by the copy engine."""
    halves = 2 * (work.sums + 1)
    is_wide = work.dtype.itemsize != 2 or work.left_bytes + work.right_bytes != halves
    if is_wide or work.others > 1 or not (target.has(WARP_GROUPS) and target.has(COPY_ENGINE)):
        return []
    why = "one warp brings blocks for two groups that multiply, and has no part in what becomes of sums"
    together, in_turn = Specialise(consumers=2), Specialise(consumers=2, pingpong=True)
    if work.sums > 1:
        shapes = [(128, 128, together)]
    else:
        shapes = [(128, 256, together), (128, 128, in_turn)]
    room = target.shared_memory_bytes - LAYOUT_BYTES
    found: list[Blocks] = []
    for rows, columns, roles in shapes:
        if not _find_roles_rate(roles, work, target):
            continue
        stages = min(MOST_STAGES, room // (64 * work.term_bytes(rows, columns)))
        block = _block(rows, columns, 64, 4, stages, why)
        found.append(replace(block, roles=roles))
    return found


def _find_roles_rate(roles: Specialise, work: Work, target: Target) -> float:
    """Operations per microsecond where warps have `roles`; 0 where nobody has measured it."""
    figures = target.machine.product_kernels
    if work.sums > 1:
        return figures.shared_gates_rate
    return figures.own_tile_rate if roles.pingpong else figures.shared_tile_rate


def model_blocks_us(block: Blocks, work: Work, target: Target, finish: Finish = PLAIN) -> float:
    """Time of `work`, which arithmetic bounds, in blocks that a copy engine brings, one program for each
    multiprocessor, and of what becomes of the sums.

    Groups of warps that take turns compute on results while others multiply, unless they wait for what they
    load. Memory traffic of results beside the first store is hidden by nothing.
    """
    figures = target.machine.product_kernels
    results = block.rows * block.columns
    tiles = work.others * -(-work.rows // block.rows) * -(-work.columns // block.columns)
    turns = -(-tiles // target.multiprocessors)
    whole = results * work.sums
    moved_us = (finish.loads + finish.stores - 1) * results / figures.stored_results
    if block.roles is not None:
        rate = _find_roles_rate(block.roles, work, target)
        multiply_us = 2 * whole * work.length * target.multiprocessors / rate
        finish_us = results / figures.stored_results
        finish_us += finish.operations / tiles * target.multiprocessors / figures.epilogue_operations
        if block.roles.pingpong and not finish.loads:
            each_us = max(multiply_us, (multiply_us + finish_us) / block.roles.consumers)
            return turns * (each_us + moved_us) + finish_us + figures.start_us
        return turns * (multiply_us + finish_us + moved_us) + figures.start_us
    rates = ((128 * 256, figures.wide_rate), (128 * 128, figures.square_rate), (0, figures.narrow_rate))
    rate = next(rate for least, rate in rates if whole >= least) / target.multiprocessors
    each_us = 2 * whole * work.length / rate + results / figures.stored_results
    flops = 2.0 * work.others * work.rows * work.columns * work.length * work.sums
    most = figures.sustained_rate if work.sums == 1 else figures.gated_rate
    epilogue_us = finish.operations / figures.epilogue_operations + turns * moved_us
    return max(turns * each_us, flops / most) + figures.start_us + epilogue_us


def model_turns_us(work: Work, target: Target) -> float:
    """Time of a library's call for `work` by the turns of all multiprocessors, in the best of its tiles.

    Where products are small, it is less than `call_rate` and `call_start_us` say: tiles are smaller then, and
    results are stored once or twice. Rates of smaller tiles are to the library's as those of our own are.
    """
    figures, times = target.machine.product_kernels, []
    tiles = ((128, 256, figures.wide_rate), (128, 128, figures.square_rate))
    for rows, columns, rate in (*tiles, (64, 128, figures.narrow_rate), (64, 64, figures.narrow_rate)):
        count = work.others * -(-work.rows // rows) * -(-work.columns // columns)
        turns, results = -(-count // target.multiprocessors), rows * columns
        share = rate / figures.wide_rate * figures.call_rate / target.multiprocessors
        each_us = 2 * results * work.length / share + results / figures.stored_results
        times.append(turns * each_us + figures.call_turns_start_us)
    return min(times)


def best_blocks_us(work: Work, target: Target, finish: Finish = PLAIN) -> float:
    """Time of `work`, which arithmetic bounds, in the best of its blocks, and of what becomes of sums."""
    return min(model_blocks_us(block, work, target, finish) for block in _square(work, target))


def _exact(work: Work) -> list[Blocks]:
    why = "each thread has a square of results in registers"
    return [_block(64, 64, 32, 4, 2, why), _block(128, 64, 16, 8, 2, why), _block(32, 64, 32, 4, 2, why)]


def _block(rows: int, columns: int, depth: int, warps: int, stages: int, reason: str) -> Blocks:
    return Blocks(rows=rows, columns=columns, depth=depth, warps=warps, stages=stages, reason=reason)


def _fit_blocks(block: Blocks, work: Work, target: Target) -> Blocks:
    """`block` no larger than the work, and with fewer stages if they do not fit otherwise."""
    block = replace(
        block,
        rows=min(block.rows, max(LEAST_SIDE, _round_up(work.rows))),
        columns=min(block.columns, max(LEAST_SIDE, _round_up(work.columns))),
        depth=min(block.depth, max(LEAST_SIDE, _round_up(work.length))),
    )
    block = fit_registers(block, work, target)
    each = block.depth * work.term_bytes(block.rows, block.columns)
    stages = max(1, min(block.stages, target.shared_memory_bytes // each))
    return replace(block, stages=stages)


def fit_registers(block: Blocks, work: Work, target: Target) -> Blocks:
    """`block`, with its longer side halved until registers hold the results of all sums."""
    groups = 1 if block.roles is None or block.roles.pingpong else block.roles.consumers
    most = groups * block.warps * target.warp_size * RESULTS_PER_THREAD
    while block.rows * block.columns * work.sums > most and max(block.rows, block.columns) > LEAST_SIDE:
        if block.columns >= block.rows:
            block = replace(block, columns=block.columns // 2)
        else:
            block = replace(block, rows=block.rows // 2)
    return block


def _round_up(number: int) -> int:
    """Return the least power of two that is no less."""
    return 1 << max(0, number - 1).bit_length()
