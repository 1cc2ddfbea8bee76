"""Make a kernel with a core from a node that a template has claimed, and its call.

The node's bodies become the core's, over flat offsets. Its epilogue and its other results become the stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, get_extent, substitute, symbol
from coilwork_ir.kernels import Kernel, KernelCall, Range, Store, TensorArg
from coilwork_ir.kernels.nodes import (
    AttentionCore,
    AttentionGradientCore,
    ConvolutionCore,
    Core,
    Numerics,
    get_ranges,
)
from coilwork_ir.loops import Attention, Body, Convolution
from coilwork_ir.loops.convolutions import Role, get_roles, list_summed_extents
from coilwork_ir.loops.verify_attention import find_operand
from coilwork_ir.scalar import (
    IndexValue,
    Load,
    Op,
    Scalar,
    cast,
    index_value,
    iterate_postorder,
    join_small_float_conversions,
    list_loads,
    load,
    parameter,
    replace_operands,
)
from coilwork_scheduler.contractions.registry import CoreNode, get_core_kind
from coilwork_scheduler.kernels.canonical import make_readable_name
from coilwork_scheduler.kernels.draft_analysis import find_unit_strides
from coilwork_scheduler.kernels.rounding import Decisions, elide_rounding, find_compared


@dataclass(frozen=True, slots=True)
class _Result:
    """A result: the buffer, an index into it, and what is stored there."""

    buffer: Buffer
    index: tuple[Expr, ...]
    value: Scalar


def make_core_kernel(
    node: CoreNode,
    buffers: Mapping[str, Buffer],
    *,
    aligned: frozenset[str],
    numerics: Numerics,
    decisions: Decisions,
) -> tuple[Kernel, KernelCall]:
    """Return the kernel that computes `node`, and its call; the arguments are those of `canonical`."""
    core, stored = _compose(node)
    roots = (*core.bodies, *(one.value for one in stored))
    given = tuple(dict.fromkeys(access.buffer for access in list_loads(roots)))
    made = [one.buffer.name for one in stored]
    names = {name: f"in{k}" for k, name in enumerate(given)}
    names |= {name: f"out{k}" for k, name in enumerate(made)}
    offsets = [one.buffer.offset_of(one.index) for one in stored]
    flat = _flatten(roots, buffers)
    spans = {name: buffers[name].span for name in names}
    sizes = _list_sizes(core, flat, (*offsets, *spans.values()))
    renamed = {size: symbol(f"n{k}", lo=size.lo, hi=size.hi) for k, size in enumerate(sizes)}
    ranges, mapping = _name_ranges(core, offsets[0], renamed)
    own = _name_operands(core, renamed)
    exact = _find_exact(roots, stored, numerics, decisions)
    values = _rename(roots, flat, {**mapping, **own}, names, exact)
    count = len(core.bodies)
    args = tuple(
        TensorArg(
            name=name,
            dtype=buffers[buffer].dtype,
            role="out" if buffer in made else "in",
            span=substitute(spans[buffer], renamed),
            aligned=buffer in aligned,
        )
        for buffer, name in names.items()
    )
    kernel = Kernel(
        name=make_readable_name(node.origins, get_core_kind(node).replace("-", "_")),
        ranges=ranges,
        args=args,
        sizes=tuple(renamed.values()),
        core=_move(core, mapping, own).replace_bodies(values[:count]),
        stores=tuple(
            Store(buffer=names[one.buffer.name], index=substitute(offset, mapping), value=value)
            for one, offset, value in zip(stored, offsets, values[count:], strict=True)
        ),
        numerics=numerics,
        origins=node.origins,
    )
    return kernel, KernelCall(kernel=kernel.name, args=tuple(names), sizes=tuple(sizes), origins=node.origins)


def _compose(node: CoreNode) -> tuple[Core, list[_Result]]:
    """Return the core of `node`, over the graph's own symbols and buffers, and what is stored of its
    results.
    """
    if isinstance(node, Convolution):
        return _compose_convolution(node)
    weights = node.weights
    wide = weights.accumulate
    if isinstance(node, Attention):
        value = cast(parameter(0, wide), node.output.dtype) if node.epilogue is None else node.epilogue
        stored = [_Result(node.output, weights.ranges, value)]
        if node.logsumexp is not None and node.logsumexp_at is not None:
            stored.append(_Result(node.logsumexp, node.logsumexp_at, parameter(1, wide)))
        return AttentionCore(weights=weights), stored
    made: list[tuple[Buffer, tuple[Expr, ...]]] = []
    for output, body in (
        (node.of_query, weights.query),
        (node.of_key, weights.key),
        (node.of_value, weights.value),
    ):
        operand = find_operand(body)
        assert operand is not None, "a gradient of what is computed"
        made.append((output, operand.index))
    if node.of_bias is not None:
        made.append((node.of_bias, node.bias_at))
    core = AttentionGradientCore(
        weights=weights,
        output=node.output,
        inner=node.inner,
        logsumexp=node.logsumexp,
        gradient=node.gradient,
        slope=node.slope,
        bias=node.bias,
    )
    return core, [
        _Result(output, index, cast(parameter(number, wide), output.dtype))
        for number, (output, index) in enumerate(made)
    ]


def _compose_convolution(node: Convolution) -> tuple[Core, list[_Result]]:
    of_value: Role = "features" if node.transposed else "image"
    of_result: Role = "image" if node.transposed else "features"
    value: tuple[Role, Body] = (of_value, node.value)
    weight: tuple[Role, Body] = ("weight", node.weight)
    output = next(output for output in node.outputs if output is not None)
    makes: Role
    if node.gradient is None:
        assert node.epilogue is not None
        makes, operands, ranges, result = (
            of_result,
            (value, weight),
            node.epilogue.ranges,
            node.epilogue.value,
        )
    else:
        gradient: tuple[Role, Body] = (of_result, node.gradient)
        result = cast(parameter(0, node.accumulate), output.dtype)
        if node.outputs[0] is not None:
            makes, operands, ranges = of_value, (weight, gradient), node.value.ranges
        else:
            makes, operands, ranges = "weight", (value, gradient), node.weight.ranges
    extents = list_summed_extents(get_roles(node), node.groups, makes)
    core = ConvolutionCore(
        makes=makes,
        ranges=ranges,
        axes=tuple(symbol(f"axis.{k}", extent=extent) for k, extent in enumerate(extents)),
        operands=operands,
        windows=node.windows,
        groups=node.groups,
        accumulate=node.accumulate,
    )
    return core, [_Result(output, ranges, result)]


def _flatten(roots: Sequence[Scalar], buffers: Mapping[str, Buffer]) -> dict[Scalar, Expr]:
    """Return the offset of each load."""
    return {access: buffers[access.buffer].offset_of(access.index) for access in list_loads(roots)}


def _list_sizes(core: Core, flat: Mapping[Scalar, Expr], exprs: Iterable[Expr]) -> tuple[Expr, ...]:
    """Size symbols that the kernel uses, in order of first use."""
    parallel, reduced = get_ranges(core)
    own = [r for _, body in core.operands for r in body.ranges] if isinstance(core, ConvolutionCore) else []
    extents = [get_extent(r) for r in (*parallel, *reduced, *own)]
    computed = [v.expr for v in iterate_postorder(core.bodies) if isinstance(v, IndexValue)]
    found: dict[Expr, None] = {}
    for expr in (*extents, *flat.values(), *computed, *exprs):
        for s in sorted(expr.free_symbols, key=lambda s: s.sort_key):
            if s.extent is None and not s.name.startswith("@"):
                found.setdefault(s)
    return tuple(found)


def _name_ranges(
    core: Core, offset: Expr, renamed: Mapping[Expr, Expr]
) -> tuple[tuple[Range, ...], dict[Expr, Expr]]:
    """Return the kernel's ranges, and all symbols by what they become.

    Neighbours in what is stored at `offset` are called `x`.
    """
    parallel, reduced = get_ranges(core)
    beside = find_unit_strides(offset)
    mapping = dict(renamed)
    ranges: list[Range] = []
    count: dict[str, int] = {}
    for old in (*parallel, *reduced):
        letter = "r" if old in reduced else "x" if old in beside else "y"
        number = count.setdefault(letter, 0)
        count[letter] += 1
        mapping[old] = symbol(f"{letter}{number}", extent=substitute(get_extent(old), renamed))
        ranges.append(Range(symbol=mapping[old], kind="reduction" if old in reduced else "parallel"))
    return tuple(ranges), mapping


def _name_operands(core: Core, renamed: Mapping[Expr, Expr]) -> dict[Expr, Expr]:
    """The operands' own ranges by what they become: `a0`, `a1`, ... of the first, `b0`, ... of the second."""
    if not isinstance(core, ConvolutionCore):
        return {}
    return {
        old: symbol(f"{letter}{number}", extent=substitute(get_extent(old), renamed))
        for letter, (_, body) in zip("ab", core.operands, strict=True)
        for number, old in enumerate(body.ranges)
    }


def _move(core: Core, mapping: Mapping[Expr, Expr], own: Mapping[Expr, Expr]) -> Core:
    """`core` over other ranges; its bodies are still the old ones."""
    parallel, reduced = (tuple(mapping[r] for r in ranges) for ranges in get_ranges(core))
    if isinstance(core, ConvolutionCore):
        (first, left), (second, right) = core.operands
        left, right = (
            Body(ranges=tuple(own[r] for r in body.ranges), value=body.value) for body in (left, right)
        )
        return replace(core, ranges=parallel, axes=reduced, operands=((first, left), (second, right)))
    return replace(core, weights=replace(core.weights, ranges=parallel, axes=reduced))


def _find_exact(
    roots: tuple[Scalar, ...], stored: Sequence[_Result], numerics: Numerics, decisions: Decisions
) -> frozenset[Scalar] | None:
    """Values that are used as they were rounded; None if all are."""
    if numerics != "fast" or any(one.buffer.name in decisions.rounded for one in stored):
        return None
    return frozenset(iterate_postorder(find_compared(roots, decisions.selections)))


def _rename(
    roots: Sequence[Scalar],
    flat: Mapping[Scalar, Expr],
    mapping: Mapping[Expr, Expr],
    names: Mapping[str, str],
    exact: frozenset[Scalar] | None,
) -> tuple[Scalar, ...]:
    """`roots` over the kernel's symbols and arguments; what is not `exact` goes on from what was rounded."""
    done: dict[Scalar, Scalar] = {}
    for node in iterate_postorder(roots):
        operands = [done[operand] for operand in node.operands]
        match node:
            case Load():
                count = len(node.indirect)
                done[node] = load(
                    names[node.buffer],
                    (substitute(flat[node], mapping),),
                    node.dtype,
                    indirect=operands[:count],
                    mask=operands[count] if node.mask is not None else None,
                    other=node.other,
                )
            case IndexValue():
                done[node] = index_value(substitute(node.expr, mapping), operands)
            case Op(op="cast") if exact is not None and node not in exact:
                done[node] = join_small_float_conversions(
                    cast(elide_rounding(operands[0], node.dtype), node.dtype)
                )
            case _:
                done[node] = replace_operands(node, operands)
    return tuple(done[root] for root in roots)
