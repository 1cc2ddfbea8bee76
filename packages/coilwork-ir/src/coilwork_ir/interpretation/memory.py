"""Named tensors and sizes of one run of a graph, schedule or program, and calls of torch operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from coilwork_ir.buffers import (
    Argument,
    Buffer,
    Constant,
    DeviceValue,
    GraphInput,
    GraphOutput,
    Item,
    ListValue,
    Ref,
    ResultPath,
    SymbolOutput,
    TorchValue,
)
from coilwork_ir.device_traits import HOST_MEMORY, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import InterpretError
from coilwork_ir.index import Expr, evaluate
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.interpretation.scalars import Access

# ---- Memory ----


Value: TypeAlias = Tensor | int | None


class Memory:
    """The tensors and sizes that the names of one run stand for.

    Tensors have exactly the layout of their buffers. All memory of a run is where its first tensor is: a
    graph for a GPU may be interpreted with CPU tensors. Without `poison` fresh memory holds zeros.
    """

    def __init__(
        self,
        sizes: Mapping[str, int] | None = None,
        device: torch.device | None = None,
        *,
        poison: bool = True,
    ) -> None:
        self._poison = poison
        self.tensors: dict[str, Tensor] = {}
        self.sizes: dict[str, int] = dict(sizes or {})
        self.device = device or torch.device("cpu")

    # Sizes

    def size(self, expr: Expr) -> int:
        """Return the value of `expr`."""
        return evaluate(expr, self.sizes)

    def bind(self, symbol: Expr, value: int) -> None:
        """Give `symbol` its value.

        Raises:
            InterpretError: the value is outside of the symbol's bounds.
        """
        if (symbol.lo is not None and value < symbol.lo) or (symbol.hi is not None and value > symbol.hi):
            raise InterpretError(
                "symbol-range",
                f"{symbol.name} is {value}, outside of its bounds",
                reason=f"lower bound {symbol.lo}, upper bound {symbol.hi}",
            )
        self.sizes[symbol.name] = value

    # Tensors

    def shape(self, buffer: Buffer) -> tuple[int, ...]:
        """Return the sizes of `buffer`."""
        return tuple(self.size(e) for e in buffer.shape)

    def strides(self, buffer: Buffer) -> tuple[int, ...]:
        """Return the strides of `buffer`, in elements."""
        return tuple(self.size(e) for e in buffer.strides)

    def allocate(self, buffer: Buffer) -> Tensor:
        """Fresh memory for `buffer`, filled with nan or a conspicuous number, so that reading too early
        shows.

        Without poison it is filled with zeros.
        """
        tensor = torch.empty_strided(
            self.shape(buffer), self.strides(buffer), dtype=torch_dtype(buffer.dtype), device=self.device
        )
        line = view_as_line(tensor)
        if not self._poison:
            line.zero_()
        elif line.dtype.is_floating_point or line.dtype.is_complex:
            line.fill_(float("nan"))
        else:
            line.view(torch.uint8).fill_(0 if line.dtype is torch.bool else 0x5A)
        self.tensors[buffer.name] = tensor
        return tensor

    def view(self, buffer: Buffer, source: Tensor, offset: int) -> Tensor:
        """`buffer` as the memory of `source`, `offset` elements of `buffer` after its first."""
        dtype = torch_dtype(buffer.dtype)
        if source.is_quantized:
            # of such memory there is no view but all of it, under another name
            self.tensors[buffer.name] = source
            return source
        start = source.storage_offset() * source.element_size()
        if start % dtype.itemsize:
            raise InterpretError("view", f"%{buffer.name} would start at byte {start} of its memory")
        tensor = torch.empty(0, dtype=dtype, device=source.device)
        tensor.set_(
            source.untyped_storage(),
            start // dtype.itemsize + offset,
            self.shape(buffer),
            self.strides(buffer),
        )
        self.tensors[buffer.name] = tensor
        return tensor

    def settle(self, buffer: Buffer, value: Tensor) -> Tensor:
        """`buffer` is `value`, copied if it has another layout, unless it is quantised: then it stays as its
        operator made it.

        Raises:
            InterpretError: another element type or shape.
        """
        shape = self.shape(buffer)
        if value.dtype is not torch_dtype(buffer.dtype) or tuple(value.shape) != shape:
            raise InterpretError(
                "result",
                f"%{buffer.name} is declared {buffer.dtype.text}{list(shape)}, "
                f"computed was {value.dtype}{list(value.shape)}",
            )
        if not value.is_quantized and not has_strides(value, self.strides(buffer)):
            copy = torch.empty_strided(shape, self.strides(buffer), dtype=value.dtype, device=value.device)
            value = copy.copy_(value)
        self.tensors[buffer.name] = value
        return value

    def access(self, names: Iterable[str]) -> dict[str, Access]:
        """Buffers as loads with one index per dimension see them."""
        accesses: dict[str, Access] = {}
        for name in names:
            value = self.tensors[name]
            accesses[name] = Access(view_as_line(value), tuple(value.shape), tuple(value.stride()))
        return accesses

    def output(self, value: GraphOutput) -> Value:
        """Return a result of the run."""
        match value:
            case Ref(name):
                return self.tensors[name]
            case Expr():
                return self.size(value)
            case None:
                return None

    # Entry

    def enter(
        self,
        inputs: Sequence[GraphInput],
        values: Sequence[object],
        constants: Sequence[Constant],
        table: Mapping[str, Tensor],
    ) -> None:
        """Give inputs and constants their values, and symbols those that follow from them.

        Raises:
            InterpretError: values that do not fit the declarations; the message names the input.
        """
        if len(values) != len(inputs):
            raise InterpretError(
                "input-count", f"{len(inputs)} inputs are declared, {len(values)} were given"
            )
        pairs = list(zip(inputs, values, strict=True))
        tensors: list[tuple[Buffer, Tensor]] = []
        for position, (entry, value) in enumerate(pairs):
            if isinstance(entry, Expr):
                self._enter_size(entry, value, position)
            else:
                tensors.append((entry, self._enter_tensor(entry, value, f"input {position}")))
        for constant in constants:
            if constant.key not in table:
                raise InterpretError("constant", f"there is no constant {constant.key!r}")
            what = f"constant {constant.key!r}"
            tensors.append((constant.buffer, self._enter_tensor(constant.buffer, table[constant.key], what)))
        if tensors:
            self.device = tensors[0][1].device
        for buffer, tensor in tensors:
            declared = (*buffer.shape, *buffer.strides)
            for expr, number in zip(declared, (*tensor.shape, *tensor.stride()), strict=True):
                if expr.is_symbol and expr.name not in self.sizes:
                    self.bind(expr, number)
        for buffer, tensor in tensors:
            self._check_layout(buffer, tensor)
        for entry, value in pairs:
            if isinstance(entry, Expr) and self.size(entry) != value:
                raise InterpretError("input-size", f"a size input is {value}, declared {entry!r}")

    def _enter_size(self, entry: Expr, value: object, position: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise InterpretError(
                "input-type", f"input {position} is a {type(value).__name__}, declared an integer"
            )
        if entry.is_symbol:
            self.bind(entry, value)

    def _enter_tensor(self, buffer: Buffer, value: object, what: str) -> Tensor:
        if not isinstance(value, Tensor):
            raise InterpretError(
                "input-type", f"{what} is a {type(value).__name__}, %{buffer.name} takes a tensor"
            )
        if value.dtype is not torch_dtype(buffer.dtype):
            raise InterpretError(
                "input-type", f"{what} is {value.dtype}, %{buffer.name} is declared {buffer.dtype.text}"
            )
        if value.dim() != len(buffer.shape):
            raise InterpretError(
                "input-layout",
                f"{what} has {value.dim()} dimensions, %{buffer.name} is declared with {len(buffer.shape)}",
            )
        # no gradients, conjugate bits or hooks: an interpreter works on memory
        self.tensors[buffer.name] = value.detach()
        return self.tensors[buffer.name]

    def _check_layout(self, buffer: Buffer, tensor: Tensor) -> None:
        shape, strides = self.shape(buffer), self.strides(buffer)
        if tuple(tensor.shape) != shape:
            raise InterpretError(
                "input-layout", f"%{buffer.name} has shape {list(tensor.shape)}, declared {list(shape)}"
            )
        if tensor.layout is not torch.strided:
            return  # in blocks of a library's, whose operators alone read it
        if not has_strides(tensor, strides):
            raise InterpretError(
                "input-layout",
                f"%{buffer.name} has strides {list(tensor.stride())}, declared {list(strides)}",
                remedy="pass a tensor with the declared strides, e.g. made by contiguous()",
            )
        # sizes of 1 may come with any stride; from here on the declared ones hold
        self.tensors[buffer.name] = tensor.as_strided(shape, strides)


def has_strides(value: Tensor, strides: Sequence[int]) -> bool:
    """Tell if `value` has the layout `strides`; strides of dimensions with one element, or none, do not
    matter.
    """
    if value.numel() == 0:
        return True
    return all(
        size == 1 or mine == wanted
        for size, mine, wanted in zip(value.shape, value.stride(), strides, strict=True)
    )


def view_as_line(value: Tensor) -> Tensor:
    """Return the memory that `value` spans, from its first element to its last, as a line. It shares that
    memory.
    """
    if value.numel() == 0:
        return value.as_strided((0,), (1,))
    span = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return value.as_strided((span,), (1,))


# ---- Calls ----


def find_operator(target: str) -> Callable[..., object]:
    """Return the operator overload that `target`, e.g. `"aten.mm.default"`, names.

    Raises:
        InterpretError: torch knows no such operator.
    """
    operator: object = torch.ops
    try:
        for part in target.split("."):
            operator = getattr(operator, part)
    except AttributeError:
        operator = None
    if target.count(".") == 2 and callable(operator):
        return operator
    raise InterpretError(
        "unknown-operator",
        f"torch has no operator {target!r}",
        remedy="import the library that registers it; names are namespace.name.overload",
    )


def argument_value(argument: Argument, memory: Memory) -> object:
    """Return the value that torch is given for `argument`."""
    match argument:
        case Ref(name):
            return memory.tensors[name]
        case Item(name):
            return memory.tensors[name].item()
        case Expr():
            return memory.size(argument)
        case DType():
            return torch_dtype(argument)
        case TorchValue(attribute):
            return getattr(torch, attribute)
        case DeviceValue(device):
            return torch.device(device) if has_trait(device, HOST_MEMORY) else memory.device
        case ListValue(items):
            return [argument_value(item, memory) for item in items]
        case _:
            return argument


def call(
    target: str,
    args: Sequence[Argument],
    kwargs: Mapping[str, Argument],
    memory: Memory,
    single: bool,
    paths: Sequence[ResultPath] = (),
) -> tuple[object, ...]:
    """Return the results of the operator, in order; with `paths`, those that lie there.

    Raises:
        InterpretError: there is no such operator, or no result at one of `paths`.
    """
    operator = find_operator(target)
    with torch.no_grad():
        result = operator(
            *[argument_value(a, memory) for a in args],
            **{name: argument_value(value, memory) for name, value in kwargs.items()},
        )
    if single:
        return (result,)
    if paths:
        return tuple(_follow_path(result, path) for path in paths)
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _follow_path(result: object, path: ResultPath) -> object:
    """Return the part of `result` that `path` leads to."""
    for step in path:
        if not isinstance(result, tuple | list) or step >= len(result):
            raise InterpretError("result", f"the operator returned nothing at {list(path)}")
        result = result[step]
    return result


def take_results(
    outputs: Sequence[Buffer | SymbolOutput | None],
    binds: Sequence[tuple[Expr, int, int]],
    results: Sequence[object],
    memory: Memory,
) -> None:
    """Bind symbols and buffers to the results of a call.

    Raises:
        InterpretError: results of another number, type or shape than declared.
    """
    if len(results) < len(outputs):
        raise InterpretError("result", f"{len(outputs)} results are declared, {len(results)} were returned")
    for output, result in zip(outputs, results, strict=False):
        if isinstance(output, SymbolOutput):
            memory.bind(output.symbol, _integer(result))
    for symbol, number, dim in binds:
        result = results[number]
        if not isinstance(result, Tensor):
            raise InterpretError("result", f"result {number} is no tensor, {symbol!r} is one of its sizes")
        memory.bind(symbol, result.shape[dim])
    for output, result in zip(outputs, results, strict=False):
        if isinstance(output, Buffer):
            if not isinstance(result, Tensor):
                raise InterpretError("result", f"%{output.name} is a {type(result).__name__}, not a tensor")
            memory.settle(output, result)


def _integer(result: object) -> int:
    match result:
        case Tensor():
            return int(result.item())
        case int() | float():
            return int(result)
        case _:
            raise InterpretError("result", f"a size is a {type(result).__name__}, not a number")
