"""Evaluates scalar graphs over a whole iteration domain at once.

A `Domain` holds its ranges as index tensors, and index expressions over them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

import torch
from torch import Tensor

from coilwork_ir.device_traits import HOST_MEMORY, has_trait
from coilwork_ir.errors import InterpretError
from coilwork_ir.index import Expr, evaluate, fold
from coilwork_ir.interpretation.ops import (
    SMALL_FLOATS,
    apply_op,
    literal,
    reduce_last,
    scan_all,
    sort_last,
    torch_dtype,
)
from coilwork_ir.ops import StoreMode
from coilwork_ir.scalar import (
    Const,
    Contraction,
    IndexValue,
    Load,
    Op,
    Parameter,
    Reduce,
    Scalar,
    Scan,
    Sort,
    iterate_postorder,
)
from coilwork_ir.scalar.nodes import Check, CheckError

# ---- Domains ----


Number: TypeAlias = int | Tensor


class Domain:
    """A product of ranges, one tensor dimension per range, in order.

    A value over the domain is a tensor that broadcasts to `shape`: size 1 (or no dimensions at all) along
    ranges that it does not vary along.
    """

    def __init__(
        self, ranges: Sequence[Expr], sizes: Mapping[str, int], device: torch.device | None = None
    ) -> None:
        self.sizes = sizes
        self.position = {value: k for k, value in enumerate(ranges)}
        self.shape = tuple(_extent(value, sizes) for value in ranges)
        self.grid: dict[Expr, Tensor] = {}
        for k, value in enumerate(ranges):
            line = torch.arange(self.shape[k], dtype=torch.int64, device=device)
            self.grid[value] = line.reshape([-1 if d == k else 1 for d in range(len(self.shape))])

    @property
    def empty(self) -> bool:
        """True if there is no point."""
        return 0 in self.shape

    def index(self, expr: Expr, placeholders: Mapping[str, Tensor]) -> Tensor:
        """Return the value of `expr` at every point; `placeholders` are the values that `@k` stands for."""

        def symbol(value: Expr) -> Number:
            known = self.grid.get(value)
            if known is not None:
                return known
            if value.name in placeholders:
                return placeholders[value.name]
            return evaluate(value, self.sizes)

        result: Number = fold(
            expr,
            const=lambda n: n,
            symbol=symbol,
            add=_chain(_add),
            mul=_chain(_mul),
            floordiv=_floordiv,
            mod=_mod,
            minimum=_chain(_minimum),
            maximum=_chain(_maximum),
        )
        return torch.as_tensor(result, dtype=torch.int64)


def _extent(value: Expr, sizes: Mapping[str, int]) -> int:
    if value.extent is None:
        raise InterpretError("range", f"{value!r} is not a range symbol")
    return max(evaluate(value.extent, sizes), 0)


def _chain(step: Callable[[Number, Number], Number]) -> Callable[[Sequence[Number]], Number]:
    def apply(operands: Sequence[Number]) -> Number:
        result = operands[0]
        for operand in operands[1:]:
            result = step(result, operand)
        return result

    return apply


def _add(a: Number, b: Number) -> Number:
    return a + b


def _mul(a: Number, b: Number) -> Number:
    return a * b


def _floordiv(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return torch.div(torch.as_tensor(a), torch.as_tensor(b), rounding_mode="floor")


def _mod(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    return torch.remainder(torch.as_tensor(a), torch.as_tensor(b))


def _minimum(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))


def _maximum(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))


# ---- Evaluation ----


_ERRORS: Final[Mapping[CheckError, type[Exception]]] = MappingProxyType(
    {"IndexError": IndexError, "RuntimeError": RuntimeError, "ZeroDivisionError": ZeroDivisionError}
)


@dataclass(frozen=True, slots=True)
class Access:
    """Memory as loads and stores see it: elements on a line, and how indices lead to them."""

    line: Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Evaluator:
    """Values of scalar nodes at every point of `domain`; every node is computed once. `given` are what
    parameters stand for.
    """

    def __init__(self, domain: Domain, memory: Mapping[str, Access], given: Sequence[Tensor] = ()) -> None:
        self.domain = domain
        self.memory = memory
        self.given = given
        self.done: dict[Scalar, Tensor] = {}

    def value(self, root: Scalar) -> Tensor:
        """Return the value of `root`, a tensor that broadcasts to the domain."""
        if root not in self.done:
            for node in iterate_postorder((root,)):
                if node not in self.done:
                    self.done[node] = self._compute(node)
        return self.done[root]

    def full(self, root: Scalar) -> Tensor:
        """Return the value of `root`, a tensor of the domain's shape. Nothing is computed for an empty
        domain.
        """
        if self.domain.empty:
            return torch.zeros(self.domain.shape, dtype=torch_dtype(root.dtype))
        return self.value(root).expand(self.domain.shape)

    def check(self, checks: Sequence[Check]) -> None:
        """Raise the error of the first check that fails at some point."""
        if self.domain.empty:
            return
        for check in checks:
            if not bool(self.value(check.condition).all()):
                raise _ERRORS[check.error](check.message)

    def _compute(self, node: Scalar) -> Tensor:
        match node:
            case Const():
                return literal(node.value, node.dtype)
            case IndexValue():
                return self._index(node.expr, [self.done[v] for v in node.operands])
            case Load():
                return self._load(node)
            case Op():
                return apply_op(node.op, [self.done[v] for v in node.operands], node.dtype)
            case Parameter():
                if node.position < len(self.given):
                    return self.given[node.position]
                raise InterpretError(
                    "parameter", f"parameter {node.position} outside of a function that combines"
                )
            case Reduce():
                return self._reduce(node)
            case Contraction():
                return self._contract(node)
            case Scan():
                return self._scan(node)
            case Sort():
                value, dim = self._whole_axis(node.operands[0], node.axis)
                ordered = sort_last(value.movedim(dim, -1), descending=node.descending, topk=node.topk)
                return ordered[node.output].movedim(-1, dim)
        raise TypeError(f"not a scalar node: {node!r}")

    def _index(self, expr: Expr, indirect: Sequence[Tensor]) -> Tensor:
        values = {f"@{k}": v.to(torch.int64) for k, v in enumerate(indirect)}
        return self.domain.index(expr, values)

    def offsets(
        self, name: str, index: Sequence[Expr], indirect: Sequence[Scalar], mask: Tensor | None
    ) -> Tensor:
        """Positions on the line of buffer `name`; where `mask` is false they are arbitrary, but valid.

        Raises:
            InterpretError: an index lies outside of the buffer.
        """
        access = self.memory[name]
        values = [self.value(v) for v in indirect]
        total: Tensor | None = None
        for dim, (expr, size, stride) in enumerate(zip(index, access.shape, access.strides, strict=True)):
            position = self._check_bounds(name, dim, expr, self._index(expr, values), size, mask)
            part = position if stride == 1 else position * stride
            total = part if total is None else total + part
        return torch.zeros((), dtype=torch.int64) if total is None else total

    def _check_bounds(
        self, name: str, dim: int, expr: Expr, found: Tensor, size: int, mask: Tensor | None
    ) -> Tensor:
        """`found`, what `expr` is along `dim` of buffer `name`, within `0..size`; raises as
        `offsets` does.
        """
        if found.numel():
            least, most = found.aminmax()
            if int(least) >= 0 and int(most) < size:
                return found
        outside = (found < 0) | (found >= size)
        if mask is not None:
            outside = outside & mask
        if not self.domain.empty and bool(outside.any()):
            shape = torch.broadcast_shapes(found.shape, outside.shape)
            shown = found.expand(shape)[outside.expand(shape)]
            raise InterpretError(
                "out-of-bounds",
                f"index {int(shown[0])} of %{name} is outside of 0..{size - 1}",
                reason=f"dimension {dim}, index expression {expr!r}",
                remedy="mask the access, or check the index first",
            )
        return found.clamp(0, max(size - 1, 0))

    def _load(self, node: Load) -> Tensor:
        mask = None if node.mask is None else self.done[node.mask]
        line = self.memory[node.buffer].line
        offsets = self.offsets(node.buffer, node.index, node.indirect, mask)
        other = literal(node.other, node.dtype)
        if line.numel() == 0:
            shape = offsets.shape if mask is None else torch.broadcast_shapes(offsets.shape, mask.shape)
            return other.expand(shape)
        value = line[offsets] if has_trait(line.device.type, HOST_MEMORY) else line.cpu()[offsets]
        if mask is None:
            return value
        return apply_op("where", [mask, value, other], node.dtype)

    def _reduce(self, node: Reduce) -> Tensor:
        dims = [self.domain.position[axis] for axis in node.axes]
        value = self._flatten_dims(self.done[node.operands[0]], dims)
        mask = self._flatten_dims(self.done[node.operands[1]], dims) if len(node.operands) > 1 else None
        return _insert_axes(reduce_last(node.kind, value, mask)[node.output], dims)

    def _contract(self, node: Contraction) -> Tensor:
        dims = [self.domain.position[axis] for axis in node.axes]
        factors = [self.done[factor].to(torch_dtype(node.dtype)) for factor in node.operands]
        return _insert_axes(
            reduce_last("sum", self._flatten_dims(factors[0] * factors[1], dims), None)[0], dims
        )

    def _flatten_dims(self, value: Tensor, dims: Sequence[int]) -> Tensor:
        """`value` with the dimensions `dims`, at full size, flattened into a last one."""
        rank = len(self.domain.shape)
        while value.dim() < rank:
            value = value.unsqueeze(0)
        value = value.expand([self.domain.shape[d] if d in dims else value.shape[d] for d in range(rank)])
        kept = [d for d in range(rank) if d not in dims]
        count = 1
        for d in dims:
            count *= self.domain.shape[d]
        return value.permute([*kept, *dims]).reshape([*(value.shape[d] for d in kept), count])

    def _whole_axis(self, operand: Scalar, axis: Expr) -> tuple[Tensor, int]:
        """Return the operand's value with all dimensions of the domain, that of `axis` at full size, and
        which one that is.
        """
        dim = self.domain.position[axis]
        value = self.done[operand]
        rank = len(self.domain.shape)
        while value.dim() < rank:
            value = value.unsqueeze(0)
        return value.expand([self.domain.shape[d] if d == dim else value.shape[d] for d in range(rank)]), dim

    def _scan(self, node: Scan) -> Tensor:
        dim = self.domain.position[node.axis]
        values = [self._whole_axis(operand, node.axis)[0].movedim(dim, -1) for operand in node.operands]
        results = scan_all(node.kind, values, reverse=node.reverse)
        return results[node.output].movedim(-1, dim)


def _insert_axes(value: Tensor, dims: Sequence[int]) -> Tensor:
    """`value` with dimensions of size 1 at `dims`, which were combined."""
    for dim in sorted(dims):
        value = value.unsqueeze(dim)
    return value


_CONVERTED: Final[Mapping[torch.dtype, torch.dtype]] = MappingProxyType(
    {
        torch.uint16: torch.int64,
        torch.uint32: torch.int64,
        **dict.fromkeys(SMALL_FLOATS, torch.float32),
    }
)


def combine(line: Tensor, offsets: Tensor, value: Tensor, mode: StoreMode, mask: Tensor | None) -> None:
    """`line[offsets] <mode>= value` where `mask`; the operands broadcast against each other."""
    operands = [offsets, value, *([] if mask is None else [mask])]
    wide = [v.contiguous() for v in torch.broadcast_tensors(*operands)]
    where, what = wide[0].flatten(), wide[1].flatten()
    if mask is not None:
        chosen = wide[2].flatten()
        where, what = where[chosen], what[chosen]
    if where.numel() == 0:
        return
    # types that torch has few kernels for are combined as what they convert to without loss
    work = line if line.dtype not in _CONVERTED else line.to(_CONVERTED[line.dtype])
    where, what = where.to(work.device), what.to(work.device, work.dtype)
    match mode:
        case "store":
            work[where] = what
        case "add":
            work.index_put_((where,), what, accumulate=True)
        case "mul":
            work.scatter_reduce_(0, where, what, "prod")
        case "min":
            work.scatter_reduce_(0, where, what, "amin")
        case "max":
            work.scatter_reduce_(0, where, what, "amax")
    if work is not line:
        line.copy_(work)
