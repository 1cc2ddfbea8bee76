"""Kernels of open sizes in two forms: for sizes as they likely are, and for all others.

    if LIKELY:
        softmax_likely(in0, out0, tl.cast(n0, tl.int32), tl.cast(n1 // 16, tl.int32), XBLOCK, R0_BLOCK, STAGES)
    else:
        softmax_any(in0, out0, n0, n1, XBLOCK, R0_BLOCK, STAGES)

`LIKELY` is a compile-time parameter: each form is machine code of its own. Whoever launches takes the likely one where the kernel's
departure, `n1 % 16 + max(0, n1 - 4096) + max(0, n0*n1 - 2146435071)` say, is 0. It is that of a kernel of known sizes but for masks:
accesses of 16 bytes, rows that are read once, positions of 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, ceildiv, maximum, mod, product, provably_le, symbol, total
from coilwork_ir.kernel_source import Config
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Load, Scalar, postorder
from coilwork_ir.target import Target
from coilwork_triton.facts.intermediate import largest_operands
from coilwork_triton.facts.likely import Assumed, assumed
from coilwork_triton.iteration.shape import Shape, plan
from coilwork_triton.iteration.tiles import MOST_POINTS, extent_of
from coilwork_triton.launch.options import TritonOptions
from coilwork_triton.launch.parameters import BLOCKS, LIKELY, UNKNOWN_EXTENT
from coilwork_triton.statements.actions import roots_of
from coilwork_triton.text.index_printer import leaves_32_bits
from coilwork_triton.text.tree import (
    Binary,
    Do,
    Expression,
    Function,
    If,
    Name,
    Number,
    Parameter,
    Statement,
    call,
    tl,
    tl_name,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """A kernel in two forms: that of `assumed` in `shape`, and the `general` one in `general_shape`. Names of blocks are the same.

    `divided` are numbers that what positions are computed from by division may come to.
    """

    assumed: Assumed
    general: Kernel
    shape: Shape
    general_shape: Shape
    divided: tuple[Expr, ...] = ()

    @property
    def likely(self) -> Kernel:
        """The form for likely sizes."""
        return self.assumed.kernel

    @property
    def configs(self) -> tuple[Config, ...]:
        """Candidates of the form for likely sizes, then one of the other: few calls take that.

        Of those for the other the one with least for each thread to do, as addresses of 64 bits take registers.
        """
        blocks = self.blocks
        own = [_with_blocks(one, blocks, 1) for one in self.shape.configs]
        return (*own, _with_blocks(min(self.general_shape.configs, key=_each), blocks, 0))

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the compile-time parameters that the forms have."""
        names = [name for shape in (self.shape, self.general_shape) for name, _ in shape.configs[0].meta]
        return tuple(dict.fromkeys(names))

    @property
    def grid(self) -> tuple[Expr, ...]:
        """Programs per grid axis, whichever form it is."""
        tiles = self.general_shape.parallel
        counts = tuple(ceildiv(t.numel, symbol(t.block, lo=1)) for t in tiles) or (as_expr(1),)
        return (product(counts),) if self.general_shape.flat_grid else counts

    @property
    def departure(self) -> Expr:
        """0 where sizes are as they likely are."""
        found = [mod(size, as_expr(unit)) for size, unit in self.assumed.units if unit > 1]
        found += [_above(size, most) for size, most in self.assumed.most]
        if self.shorter:
            tiles: dict[str, list[Expr]] = {}
            for entry in self.general.ranges:
                tiles.setdefault(entry.tile, []).append(extent_of(entry))
            numbers = [*(arg.span for arg in self.general.args), *map(product, tiles.values())]
            numbers += [*self.general.sizes, *self.divided]
            found += [_above(n, MOST_POINTS) for n in _largest(numbers) if not provably_le(n, MOST_POINTS)]
        return total(found)

    @property
    def shorter(self) -> bool:
        """Positions are of 32 bits in the form for likely sizes alone."""
        return self.shape.index_dtype is DType.I32 and self.general_shape.index_dtype is DType.I64


def _each(config: Config) -> float:
    """Points of a block for each warp."""
    return prod(size for name, size in config.meta if name in BLOCKS.values()) / config.num_warps


def _with_blocks(config: Config, blocks: Iterable[str], likely: int) -> Config:
    known = dict(config.meta)
    return replace(config, meta=(*((name, known.get(name, 1)) for name in blocks), (LIKELY, likely)))


def _above(number: Expr, most: int) -> Expr:
    return maximum(as_expr(0), number - most)


def _largest(numbers: Iterable[Expr]) -> list[Expr]:
    """Those of `numbers` that no other one is at least as large as."""
    found = list(dict.fromkeys(numbers))
    return [n for n in found if not any(n is not other and provably_le(n, other) for other in found)]


def forms_of(kernel: Kernel, target: Target, options: TritonOptions, *, step: int) -> Forms | None:
    """`kernel` in two forms; None if one will do. `step` is as in `plan`."""
    if options.batch_invariant or options.index_dtype == "i64":
        return None
    found = assumed(kernel, roots_of(kernel))
    if found is None:
        return None
    special = found.kernel
    roots = roots_of(special)
    divided = largest_operands(_positions(kernel, roots_of(kernel)))
    fits = divided is not None and not any(map(leaves_32_bits, _positions(special, roots)))
    narrow = replace(options, index_dtype="i32") if fits else options
    shape = plan(special, roots, target, narrow, step=step)
    # calls that are unlike the first may be of many more rows
    general = plan(kernel, roots_of(kernel), target, options, step=step, least=UNKNOWN_EXTENT)
    if shape.sharing is not None or general.sharing is not None or not _alike(shape, general):
        return None
    flat = shape.flat_grid or general.flat_grid
    forms = Forms(
        assumed=found,
        general=kernel,
        shape=replace(shape, flat_grid=flat),
        general_shape=replace(general, flat_grid=flat),
        divided=divided or (),
    )
    return None if forms.departure is as_expr(0) else forms


def _positions(kernel: Kernel, roots: tuple[Scalar, ...]) -> list[Expr]:
    """Where `kernel` loads and stores."""
    loads = [node.index[0] for node in postorder(roots) if isinstance(node, Load)]
    return [*loads, *(store.index for store in kernel.stores)]


def _alike(one: Shape, other: Shape) -> bool:
    """The grid is the same but for the sizes of blocks."""

    def told(shape: Shape) -> list[object]:
        return [
            (t.letter, t.index.name, t.column, tuple(part.name for part, _ in t.parts))
            for t in shape.parallel
        ]

    return told(one) == told(other) and all(t.column is None for t in one.tiles)


def dispatch(
    forms: Forms, likely: tuple[Statement, ...], general: tuple[Statement, ...]
) -> tuple[tuple[Function, ...], tuple[Statement, ...]]:
    """The functions of both forms, whose statements are `likely` and `general`, and the body of a kernel that calls one of them."""
    kernel = forms.general
    tensors = [arg.name for arg in kernel.args]
    one = _function(
        f"{kernel.name}_likely", "Sizes as they likely are.", tensors, forms.likely, forms, likely
    )
    other = _function(f"{kernel.name}_any", "Any sizes.", tensors, kernel, forms, general)
    parts = [_part(Name(size.name), unit, shorter=forms.shorter) for size, unit in forms.assumed.units]
    names, blocks = list(map(Name, tensors)), list(map(Name, forms.blocks))
    sizes = [Name(size.name) for size in kernel.sizes]
    return (one, other), (
        If(
            Name(LIKELY),
            (Do(call(one.name, *names, *parts, *blocks)),),
            (Do(call(other.name, *names, *sizes, *blocks)),),
        ),
    )


def _function(
    name: str, doc: str, tensors: Iterable[str], kernel: Kernel, forms: Forms, body: tuple[Statement, ...]
) -> Function:
    run_time = [*tensors, *(size.name for size in kernel.sizes)]
    constants = (Parameter(block, constexpr=True) for block in forms.blocks)
    return Function(name=name, parameters=(*map(Parameter, run_time), *constants), body=body, doc=(doc,))


def _part(size: Expression, unit: int, *, shorter: bool) -> Expression:
    part = size if unit == 1 else Binary("//", size, Number(unit))
    return tl("cast", part, tl_name("int32")) if shorter else part
