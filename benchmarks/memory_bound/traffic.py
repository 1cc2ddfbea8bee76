"""What a program moves through memory by its own account: bytes read and written by each launch and each ATen
call.

An estimate from the program's text. A kernel touches each element that an access covers once per pass over
it; a looped reduction passes over its rows as often as reductions wait for each other. Caches are not counted
on: a second pass that hits them is one all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from types import MappingProxyType

import torch

from coilwork_ir.buffers import Argument, Buffer, list_references
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int, substitute
from coilwork_ir.kernels.nodes import ComboKernel, Kernel, Range
from coilwork_ir.mapping import Keep, Share, Unit
from coilwork_ir.program.nodes import ExternCall, Launch, Program
from coilwork_ir.program.walk import index_buffers
from coilwork_ir.scalar import IndexValue, Load, Reduce, Scalar, Scan, iterate_postorder
from coilwork_ir.target import TARGETS
from coilwork_triton.codegen import find_mapping
from coilwork_triton.options import TritonOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One launch or ATen call: its name, how its reductions walk, and bytes."""

    name: str
    walk: str
    read: int
    written: int
    extern: bool = False

    @property
    def total(self) -> int:
        return self.read + self.written


def traffic(program: Program) -> tuple[Moved, ...]:
    """Return what each launch and each ATen call of `program` moves, in order. Sizes must be known."""
    known = index_buffers(program)
    kernels = {kernel.name: kernel for kernel in program.kernels}
    found: list[Moved] = []
    for instruction in program.instructions:
        match instruction:
            case Launch():
                kernel = kernels[instruction.kernel]
                found.append(kernel_traffic(kernel, dict(zip(kernel.sizes, instruction.sizes, strict=True))))
            case ExternCall() if not _is_view(instruction.target):
                target = instruction.target
                # `rand_like` and its kin only look at the shape of their argument.
                arguments = (*instruction.args, *(value for _, value in instruction.kwargs))
                written = [known[name] for _, name in instruction.out]
                written += [output for output in instruction.outputs if isinstance(output, Buffer)]
                found.append(
                    Moved(
                        name=target,
                        walk="",
                        read=_count_stored(
                            known[name] for name in _names(arguments) if "_like" not in target
                        ),
                        written=_count_stored(written),
                        extern=True,
                    )
                )
            case _:
                pass
    return tuple(found)


def _is_view(target: str) -> bool:
    """True for operators such as `aten.view_as_real.default`, whose result lies where their operand does."""
    namespace, *names = target.split(".")
    overload = reduce(getattr, names, getattr(torch.ops, namespace)) if namespace == "aten" else None
    if not isinstance(overload, torch._ops.OpOverload):
        return False
    returned = [value.alias_info for value in overload._schema.returns]
    return any(info is not None and not info.is_write for info in returned)


def kernel_traffic(kernel: Kernel, sizes: Mapping[Expr, Expr] = MappingProxyType({})) -> Moved:
    """Return what one launch of `kernel` moves, whose size symbols are `sizes`."""
    if kernel.combined is not None:
        return _count_combined_traffic(kernel, kernel.combined)
    args = {arg.name: replace(arg, span=substitute(arg.span, sizes)) for arg in kernel.args}
    extents = {r.symbol: _extent(r, sizes) for r in kernel.ranges}
    looped = _walks(kernel) == "looped"
    passes: dict[tuple[str, int], set[tuple[Expr, tuple[Scalar, ...]]]] = {}
    for load, depth in _moments(kernel):
        passes.setdefault((load.buffer, depth if looped else 0), set()).add((load.index[0], load.indirect))
    read = 0
    for (name, _), accesses in passes.items():
        points = sum(_points(index, indirect, extents) for index, indirect in accesses)
        read += min(points, _evaluate_size(args[name].span)) * args[name].dtype.itemsize
    written = 0
    for store in kernel.stores:
        arg = args[store.buffer]
        points = min(_points(store.index, store.indirect, extents), _evaluate_size(arg.span))
        written += points * arg.dtype.itemsize
        read += 0 if store.mode == "store" else points * arg.dtype.itemsize
    return Moved(name=kernel.name, walk=_walk(kernel, sizes), read=read, written=written)


def _count_combined_traffic(kernel: Kernel, combined: ComboKernel) -> Moved:
    body = combined.body
    parts = [
        kernel_traffic(body, dict(zip(body.sizes, member.sizes, strict=True))) for member in combined.members
    ]
    return Moved(
        name=kernel.name,
        walk=f"{len(parts)} members",
        read=sum(part.read for part in parts),
        written=sum(part.written for part in parts),
    )


def _extent(entry: Range, sizes: Mapping[Expr, Expr]) -> int:
    extent = entry.symbol.extent
    return _evaluate_size(None if extent is None else substitute(extent, sizes))


def _walk(kernel: Kernel, sizes: Mapping[Expr, Expr]) -> str:
    reduced = [_extent(r, sizes) for r in kernel.ranges if r.kind == "reduction"]
    parallel = [_extent(r, sizes) for r in kernel.ranges if r.kind == "parallel"]
    shape = "x".join(map(str, parallel)) or "1"
    if not reduced:
        return shape
    return f"{shape} by {'x'.join(map(str, reduced))} {_walks(kernel)}"


def _walks(kernel: Kernel) -> str:
    """Return how a GPU goes through the rows of `kernel`, if it reduces any: kept in registers, shared by
    programs, or in a loop.
    """
    if all(r.kind == "parallel" for r in kernel.ranges):
        return "pointwise"
    try:
        mapping = find_mapping(kernel, TARGETS["sm_90"], TritonOptions()).versions.general
    except EmitError:
        # a CPU's kernel that no GPU has: loops
        return "looped"
    walks = ((Unit, "contracted"), (Keep, "kept"), (Share, "shared"))
    kinds = [type(directive) for directive in mapping.directives]
    return next((name for kind, name in walks if kind in kinds), "looped")


def _moments(kernel: Kernel) -> Iterator[tuple[Load, int]]:
    """Every load with each number of reductions that must be complete before it happens."""
    roots: list[tuple[Scalar, ...]] = []
    for store in kernel.stores:
        roots.append((store.value, *store.indirect, *(() if store.mask is None else (store.mask,))))
    roots += [(check.condition,) for check in kernel.checks]
    depth: dict[Scalar, int] = {}
    moments: list[tuple[tuple[Scalar, ...], int]] = []
    for node in iterate_postorder([value for root in roots for value in root]):
        below = max((depth[operand] for operand in node.operands), default=0)
        if isinstance(node, Reduce | Scan):
            moments.append((node.operands, below))
        depth[node] = below + isinstance(node, Reduce)
    moments += [(root, max(depth[value] for value in root)) for root in roots]
    seen: set[tuple[Load, int]] = set()
    for operands, at in moments:
        for load in _loads_of_pass(operands):
            if (load, at) not in seen:
                seen.add((load, at))
                yield load, at


def _loads_of_pass(roots: tuple[Scalar, ...]) -> Iterator[Load]:
    """Loads that `roots` read themselves, not through a reduction."""
    pending, seen = list(roots), set[Scalar]()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Load):
            yield node
        if not isinstance(node, Reduce):
            pending += node.operands


def _points(index: Expr, indirect: tuple[Scalar, ...], extents: dict[Expr, int]) -> int:
    """Elements that an access covers: points of the ranges that it varies along."""
    symbols = set(index.free_symbols)
    for node in iterate_postorder(indirect):
        if isinstance(node, Load):
            symbols |= node.index[0].free_symbols
        elif isinstance(node, IndexValue):
            symbols |= node.expr.free_symbols
    points = 1
    for symbol in symbols:
        points *= extents.get(symbol, 1)
    return points


def _names(arguments: Iterable[Argument]) -> Iterator[str]:
    """Buffers among the arguments, each once."""
    yield from dict.fromkeys(name for argument in arguments for name in list_references(argument))


def _count_stored(values: Iterable[Buffer]) -> int:
    total = 0
    for value in values:
        count = value.dtype.itemsize
        for extent, stride in zip(value.shape, value.strides, strict=True):
            count *= _evaluate_size(extent) if as_int(stride) != 0 else 1
        total += count
    return total


def _evaluate_size(size: Expr | None) -> int:
    found = None if size is None else as_int(size)
    if found is None:
        raise ValueError(f"size {size} is not known")
    return found
