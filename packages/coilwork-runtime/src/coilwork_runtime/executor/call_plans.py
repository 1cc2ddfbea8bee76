"""Plan how each call of an operator is made: by its own C function, by the dispatcher, or in Python.

`plan_call` chooses the route and writes the plan that the native executor reads. `make_callback` is the call
in Python, with what is the same in every call laid out beforehand.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal, Protocol

import torch

from coilwork_runtime.c_shim import (
    C_FUNCTIONS,
    NUMBER_READS,
    Parameter,
    Schema,
    find_function_name,
    find_schema,
)
from coilwork_runtime.errors import ProgramBytesError
from coilwork_runtime.executor.marshalling import (
    Unplanned,
    encode_dispatcher_value,
    encode_function_value,
    is_exact,
)
from coilwork_runtime.executor.program_reader import Argument, Item, RecordedCall, Size, Slot
from coilwork_runtime.executor.vendor_libraries import (
    ConvolutionLibrary,
    ProductLibrary,
    encode_convolution,
    encode_product,
)
from coilwork_runtime.manifest.wire_format import join_items, text, u32
from coilwork_runtime.triton_kernels.user_kernels import UserKernel, find_kernel
from coilwork_runtime.triton_kernels.user_launches import (
    LaunchArguments,
    Operand,
    SizeOperand,
    TensorOperand,
    explain_obstacle,
    remember_launches,
)

Callback = Callable[[list[torch.Tensor], list[int]], Any]


def make_callback(call: RecordedCall) -> Callback:
    """Return a function over the call's tensors and computed integers, each in order, that makes the call and
    returns its results.

    Results that lie in lists are returned as one list, in the call's order.
    """
    places = _Places()
    by_place = [places.find(value) for value in call.args]
    by_name = {name: places.find(value) for name, value in call.kwargs.items()}
    kernel = find_kernel(call.target)
    if kernel is not None:
        launch, fill = kernel.call, _fill_launch(kernel, by_place, by_name)
        return lambda tensors, sizes: launch(*fill(tensors, sizes))
    find = find_operator(call.target)
    positional, named, names = _Row(by_place), _Row(list(by_name.values())), tuple(by_name)
    fixed = dict(zip(names, named.fill([], []), strict=True)) if named.is_fixed else None

    def call_operator(tensors: list[torch.Tensor], sizes: list[int]) -> Any:
        args = positional.fill(tensors, sizes)
        if fixed is not None:
            return find()(*args, **fixed)
        return find()(*args, **dict(zip(names, named.fill(tensors, sizes), strict=True)))

    if not call.paths:
        return call_operator
    return lambda tensors, sizes: _parts(call_operator(tensors, sizes), call.paths)


def _fill_launch(
    kernel: UserKernel, by_place: Sequence[Place], by_name: Mapping[str, Place]
) -> Callable[[list[torch.Tensor], list[int]], list[Any]]:
    """Return a function that lists the arguments of a launch, which does without the dispatcher, all by
    place.
    """
    return _Row([*by_place, *(by_name[name] for name in kernel.order[len(by_place) :])]).fill


def _make_launch_callback(call: RecordedCall, kernel: UserKernel) -> Callback:
    """`make_callback` of a launch, which returns how to launch it the next time without Python, or None."""
    places = _Places()
    by_place = [places.find(value) for value in call.args]
    by_name = {name: places.find(value) for name, value in call.kwargs.items()}
    operands = [_find_operand(place) for place in (*by_place, *by_name.values())]
    names = (*kernel.order[: len(by_place)], *by_name)
    arguments = LaunchArguments(kernel, dict(zip(names, operands, strict=True)))
    return remember_launches(arguments, _fill_launch(kernel, by_place, by_name))


def _find_operand(place: Place) -> Operand:
    match place:
        case _Tensor():
            return TensorOperand(place.number)
        case _Integer():
            return SizeOperand(place.number)
        case _Fixed():
            return place.value
    return [_find_operand(one) for one in place.places]


def _parts(results: Any, paths: Sequence[tuple[int, ...]]) -> list[Any]:
    """Return the values in `results` at `paths`; each path leads through tuples and lists."""
    return [functools.reduce(operator.getitem, path, results) for path in paths]


def find_operator(target: str) -> Callable[[], Callable[..., Any]]:
    """Return a function that looks an operator overload up when it is called: those of a library may be
    registered later.
    """
    parts = target.split(".")
    if len(parts) != 3:
        root: Any = torch.ops
        return lambda: functools.reduce(getattr, parts, root)
    namespace, name, overload = parts
    return lambda: getattr(getattr(getattr(torch.ops, namespace), name), overload)


def require_operator(target: str) -> Callable[..., Any]:
    """Return an operator overload.

    Raises:
        ProgramBytesError: there is none of this name.
    """
    try:
        return find_operator(target)()
    except (AttributeError, RuntimeError) as error:
        raise ProgramBytesError(
            "missing-operator",
            f"a program calls {target}, which is not registered here",
            reason=str(error),
            remedy="import the library that registers it before the program is loaded",
        ) from error


@dataclass(frozen=True, slots=True)
class _Fixed:
    """An argument that is the same in every call."""

    value: Any


@dataclass(frozen=True, slots=True)
class _Tensor:
    """The tensor of this number, or the number that it holds."""

    number: int
    is_item: bool = False


@dataclass(frozen=True, slots=True)
class _Integer:
    """The computed integer of this number."""

    number: int


class _Places:
    """Sources of arguments; tensors and integers are numbered in the order of their look-up."""

    def __init__(self) -> None:
        self._tensors = 0
        self._sizes = 0

    def find(self, value: Argument) -> Place:
        """Return the place of `value`."""
        match value:
            case Slot() | Item():
                self._tensors += 1
                return _Tensor(self._tensors - 1, isinstance(value, Item))
            case Size():
                self._sizes += 1
                return _Integer(self._sizes - 1)
            case list():
                row = _Row([self.find(item) for item in value])
                return _Fixed(row.fill([], [])) if row.is_fixed else row
            case _:
                return _Fixed(value)


class _Row:
    """A list of arguments, of which only those that change are looked up in a call."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = tuple(places)
        self._template = [place.value if isinstance(place, _Fixed) else None for place in places]
        self._tensors = [
            (k, one.number) for k, one in enumerate(places) if isinstance(one, _Tensor) and not one.is_item
        ]
        self._sizes = [(k, one.number) for k, one in enumerate(places) if isinstance(one, _Integer)]
        self._items = [
            (k, one.number) for k, one in enumerate(places) if isinstance(one, _Tensor) and one.is_item
        ]
        self._rows = [(k, one) for k, one in enumerate(places) if isinstance(one, _Row)]

    @property
    def is_fixed(self) -> bool:
        """True if it is the same in every call."""
        return not (self._tensors or self._sizes or self._items or self._rows)

    def fill(self, tensors: list[torch.Tensor], sizes: list[int]) -> list[Any]:
        """Return a new list with the arguments of a call."""
        row: list[Any] = self._template.copy()
        for place, number in self._tensors:
            row[place] = tensors[number]
        for place, number in self._sizes:
            row[place] = sizes[number]
        for place, number in self._items:
            row[place] = tensors[number].item()
        for place, inner in self._rows:
            row[place] = inner.fill(tensors, sizes)
        return row


Place = _Fixed | _Tensor | _Integer | _Row
"""Where an argument is found."""


# ---- plans ----


# Room on the stack of the native executor.
MOST_VALUES: Final = 48
MOST_REALS: Final = 8
_NO_LIBRARY: Final = bytes((0,))


class Route(IntEnum):
    """The ways to make a call."""

    PYTHON = 0
    FUNCTION = 1
    DISPATCHER = 2
    ITEM = 3
    # of a kernel of the user's: in Python, until that says how to do without
    LAUNCH = 4


class TorchInterface(Protocol):
    """torch's C interface, as the extension finds it."""

    def symbol(self, name: str) -> int:
        """Return the address of a function, 0 if there is none."""
        ...

    def code(self, name: str) -> int | None:
        """Return the result of a function without parameters, `None` if there is no such function."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPlan:
    """The plan of one call.

    Attributes:
        target: the operator.
        route: who makes it.
        data: the plan as the native executor reads it (native/program/plans.hpp).
        callback: makes it in Python, where that is the route or the route fails.
        reason: why it is not made natively, `""` if it is, or is from the second time on.
        library: what is asked first: cuBLASLt for matrix products, cuDNN for convolutions, `""` nothing.
    """

    target: str
    route: Route
    data: bytes
    callback: Callback
    reason: str = ""
    library: Literal["", "cuBLASLt", "cuDNN"] = ""


# Operators outside ATen that write nowhere: a call that fails may be made again.
_REPEATABLE: Final = frozenset({"mkldnn::_linear_pointwise", "mkldnn::_convolution_pointwise"})


def plan_call(
    call: RecordedCall,
    torch_interface: TorchInterface,
    products: ProductLibrary | None = None,
    convolutions: ConvolutionLibrary | None = None,
) -> CallPlan:
    """Return the plan of `call`, which `products` may do if it is a matrix product, and `convolutions` if it
    is a convolution.
    """
    try:
        route, head = _native(call, torch_interface)
        reason = ""
    except Unplanned as error:
        route, head, reason = Route.PYTHON, u32(0) + u32(0), str(error)
    kernel = find_kernel(call.target)
    if kernel is not None:
        reason = _explain_launch(call, kernel)
        route = Route.PYTHON if reason else Route.LAUNCH
    tail = join_items([u32(slot.number) for slot in call.slots()])
    tail += join_items([u32(size.number) for size in call.sizes()])
    product, convolution = encode_product(call, products), encode_convolution(call, convolutions)
    tail += u32(call.wanted) + bytes((call.single,)) + (product or convolution or _NO_LIBRARY)
    return CallPlan(
        target=call.target,
        route=route,
        data=bytes((route,)) + head + tail,
        callback=_make_launch_callback(call, kernel)
        if kernel is not None and not reason
        else make_callback(call),
        reason=reason,
        library="cuBLASLt" if product else "cuDNN" if convolution else "",
    )


def _explain_launch(call: RecordedCall, kernel: UserKernel) -> str:
    """Return why each launch of `kernel` is made in Python; empty if none but the first is."""
    if any(isinstance(value, Item) for value in (*call.args, *call.kwargs.values())):
        return "it takes a number from a tensor"
    return explain_obstacle(kernel)


def _native(call: RecordedCall, torch_interface: TorchInterface) -> tuple[Route, bytes]:
    """Return the route, and what the plan says of it: results, then values."""
    if call.target in NUMBER_READS:
        (slot,) = call.slots()
        return Route.ITEM, u32(0) + join_items([bytes((1,)) + u32(slot.number)])
    if call.paths:
        raise Unplanned("it returns lists beside other results, which torch's C interface does not")
    schema = find_schema(call.target)
    if schema is None:
        raise Unplanned("torch has no schema for it")
    if not schema.name.startswith("aten::") and schema.name not in _REPEATABLE:
        # what fails natively is done again in Python, and nobody knows what these do
        raise Unplanned("operators of other libraries are called in Python")
    bound = tuple(bind(call, schema))
    name = find_function_name(schema, call.device)
    # functions of a device are its own kernels, not those for quantised tensors
    quantized = any(slot.is_quantized for slot in call.slots())
    address = 0 if name is None or quantized else torch_interface.symbol(name)
    if address and _is_same_as_double(call.target, bound):
        try:
            return Route.FUNCTION, _encode_function_call(address, schema, bound, torch_interface)
        except Unplanned:
            # the dispatcher has forms for more
            pass
    return Route.DISPATCHER, _encode_dispatcher_call(schema, bound, torch_interface)


def _encode_function_call(
    address: int,
    schema: Schema,
    bound: tuple[tuple[Parameter, Argument], ...],
    torch_interface: TorchInterface,
) -> bytes:
    ordered = [b for b in bound if b[0].is_out] + [b for b in bound if not b[0].is_out]
    values = []
    for parameter, value in ordered:
        data = encode_function_value(parameter, value, torch_interface.code)
        # a device or list that is not given is two values: a pointer, and an index or count
        double = str(parameter.type) in ("Optional[Device]", "Optional[List[int]]") and value is None
        values += [data[:1], data[1:]] if double else [data]
    reals = sum(str(parameter.type) in ("float", "number") for parameter, _ in bound)
    if 2 * len(values) > MOST_VALUES or reals > MOST_REALS:
        raise Unplanned("it has too many arguments")
    results = [] if schema.writes_in_place else [bytes((str(r) != "Tensor",)) for r in schema.results]
    head = address.to_bytes(8, "little") + bytes((schema.writes_in_place,))
    return head + join_items(results) + join_items(values)


def _encode_dispatcher_call(
    schema: Schema, bound: tuple[tuple[Parameter, Argument], ...], torch_interface: TorchInterface
) -> bytes:
    kinds = {"Tensor": 0, "int": 1, "bool": 1, "List[Tensor]": 2}
    results = []
    for kind in schema.results:
        if str(kind) not in kinds or (str(kind) == "List[Tensor]" and len(schema.results) > 1):
            raise Unplanned(f"it returns {kind}, which torch's C dispatcher does not")
        results.append(bytes((kinds[str(kind)],)))
    kinds_in_order = [str(kind) for kind in schema.results]
    if kinds_in_order != kinds_in_order[::-1]:
        # it converts each result as the one at the same distance from the other end, and so fails
        raise Unplanned("it returns results of several types, which torch's C dispatcher mixes up")
    if len(bound) > MOST_VALUES:
        raise Unplanned("it has too many arguments")
    values = [encode_dispatcher_value(parameter, value, torch_interface.code) for parameter, value in bound]
    return text(schema.name) + text(schema.overload) + join_items(results) + join_items(values)


def bind(call: RecordedCall, schema: Schema) -> Iterator[tuple[Parameter, Argument]]:
    """Each parameter of `schema` with its argument, defaults filled in.

    Raises:
        Unplanned: the call does not fit the schema.
    """
    if len(call.args) > len(schema.parameters):
        raise Unplanned(f"it takes {len(schema.parameters)} arguments and is given {len(call.args)}")
    given = {p.name: a for p, a in zip(schema.parameters[: len(call.args)], call.args, strict=True)}
    given.update(call.kwargs)
    unknown = given.keys() - {parameter.name for parameter in schema.parameters}
    if unknown:
        raise Unplanned(f"it has no argument {sorted(unknown)[0]}")
    for parameter in schema.parameters:
        if parameter.name in given:
            yield parameter, given[parameter.name]
        elif parameter.has_default:
            yield parameter, _default(parameter.default)
        elif parameter.type.name == "Optional":
            yield parameter, None
        else:
            raise Unplanned(f"argument {parameter.name} is missing")


def _default(value: Any) -> Argument:
    if isinstance(value, list | tuple):
        return [_default(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise Unplanned(f"its default {value!r} cannot be spelled")


def _is_same_as_double(target: str, bound: tuple[tuple[Parameter, Argument], ...]) -> bool:
    """Return True if the result is the same when `Scalar` arguments are `double`, which C functions take.

    An integer makes another result than the equal `double` unless a tensor is of floating point, or the value
    is converted to a type that is given. A truth value does where it is no number: as `alpha` of a sum, which
    refuses it.
    """
    scalars = [value for p, value in bound if p.type.mentions("number") and value is not None]
    if not all(is_exact(value) for value in scalars):
        return False
    if all(isinstance(value, float) for value in scalars):
        return True
    tensors = [slot for _, value in bound for slot in _slots(value)]
    function = C_FUNCTIONS.get(target)
    if function is not None and function.scalars == "cast":
        return bool(tensors) or any(isinstance(value, torch.dtype) for _, value in bound)
    if any(isinstance(value, bool) for value in scalars):
        return False
    return any(slot.is_float for slot in tensors)


def _slots(value: Argument) -> Iterator[Slot]:
    if isinstance(value, Slot):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _slots(item)
