"""Triton kernels of the user's as operators of torch's, so that a program calls them as it calls any other.

`define_kernel` defines the operator `coilwork_kernels::name_digest` for one kind of call: tensors, numbers
and texts are its arguments, with the memory that the kernel writes declared in its schema, and the grid
follows them. What no schema can say (None, types of Triton's, kernels given to kernels) is part of the
operator. The digest is of the kernel's source, the sources and globals that it uses, its configurations and
these constants: the same call has the same operator in every process.

Where Triton is told to interpret (TRITON_INTERPRET=1), kernels over CPU tensors run in its interpreter.
"""

from __future__ import annotations

import hashlib
import threading
import types
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_runtime.torch_compat import get_current_cuda_device
from coilwork_runtime.triton_kernels.triton_interpreter import is_interpreting, run_interpreted

NAMESPACE: Final = "coilwork_kernels"
_DIGITS: Final = 12
_INT64: Final = 1 << 63


Descriptor = tuple[str, tuple[int, ...]]
"""A host-side tensor descriptor: the API that makes it, `stable` or `experimental`, and how many numbers each
list has that it takes: the block's extents; with the older API the tensor's, the block's, the element's size.
"""


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch that Triton made: what it compiled, and the number of its grid among those of the call."""

    compiled: Any
    grid: int


@dataclass(frozen=True, kw_only=True)
class UserKernel:
    """A kernel of the user's with the operator that launches it.

    Attributes:
        kernel: what the user launches: a function of `triton.jit`, `autotune` or `heuristics`.
        name: of the operator in `NAMESPACE`.
        schema: of the operator, without its name.
        arguments: the operator's argument for each parameter of the kernel that is one, in order.
        constants: the values of the other parameters.
        descriptors: parameters that take a descriptor of their tensor.
        grids: how many grids a launch has: one, or one for each configuration.
    """

    kernel: Any
    name: str
    schema: str
    arguments: Mapping[str, str]
    constants: Mapping[str, Any]
    descriptors: Mapping[str, Descriptor]
    grids: int

    @property
    def descriptor_argument(self) -> str:
        """The operator's argument for the numbers of all descriptors in a row."""
        return "launch_descriptors"

    @property
    def grid_argument(self) -> str:
        """The operator's argument for all grids in a row."""
        return "launch_grid"

    @property
    def overload(self) -> Any:
        """The operator."""
        return getattr(getattr(torch.ops, NAMESPACE), self.name).default

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The operator's arguments in order."""
        lists = (self.descriptor_argument,) * bool(self.descriptors) + (self.grid_argument,)
        return (*self.arguments.values(), *lists)

    @cached_property
    def _is_plain(self) -> bool:
        """True if a launch takes the operator's arguments as they come, and one grid."""
        names = tuple(self.kernel.arg_names[: len(self.arguments)])
        is_one = self.grids == 1 and not self.constants and not self.descriptors
        return is_one and tuple(self.arguments) == names

    def launch(self, *values: Any) -> Launched | None:
        """Launch the kernel with the operator's arguments: the parameters' values, the numbers of
        descriptors if it has any, and the grids, three extents each. None: it was interpreted."""
        tensor = next((one for one in values if isinstance(one, torch.Tensor)), None)
        if tensor is not None and tensor.is_cuda:
            device = tensor.get_device()
            if device != get_current_cuda_device():
                with torch.cuda.device(device):
                    return self._launch_here(values)
        elif tensor is not None and tensor.is_cpu and is_interpreting():
            grid = _Grids(self.kernel, values[-1]) if self.grids > 1 else tuple(values[-1])
            run_interpreted(self.kernel, grid, self._name_values(values))
            return None
        return self._launch_here(values)

    def call(self, *values: Any) -> None:
        """The operator: `launch`."""
        self.launch(*values)

    def _launch_here(self, values: tuple[Any, ...]) -> Launched:
        """Launch on the current device."""
        if self._is_plain:
            return Launched(self.kernel.run(*values[:-1], grid=tuple(values[-1]), warmup=False), 0)
        given = self._name_values(values)
        # an autotuner's hooks are given what is passed by name twice
        positional = []
        for name in self.kernel.arg_names:
            if name not in given:
                break
            positional.append(given.pop(name))
        if self.grids == 1:
            grid = tuple(values[-1])
            return Launched(self.kernel.run(*positional, grid=grid, warmup=False, **given), 0)
        grids = _Grids(self.kernel, values[-1])
        compiled = self.kernel.run(*positional, grid=grids, warmup=False, **given)
        return Launched(compiled, grids.last)

    def _name_values(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the kernel's arguments by the names of its parameters, constants among them."""
        given = dict(zip(self.arguments, values, strict=False))
        if self.descriptors:
            _make_descriptors(self.descriptors, given, values[-2])
        return {**given, **self.constants}


class _Grids:
    """A function of a launch's arguments that returns the grid of the configuration which these are of.

    `last` is the number of the one that it returned last.
    """

    def __init__(self, kernel: Any, extents: Sequence[int]) -> None:
        self._configs = [config.kwargs for config in kernel.configs]
        self._extents = extents
        self.last = 0

    def __call__(self, arguments: Mapping[str, Any]) -> tuple[int, ...]:
        self.last = next(
            k
            for k, values in enumerate(self._configs)
            if all(name in arguments and arguments[name] == value for name, value in values.items())
        )
        return tuple(self._extents[3 * self.last : 3 * self.last + 3])


def _make_descriptors(
    descriptors: Mapping[str, Descriptor], given: dict[str, Any], numbers: Sequence[int]
) -> None:
    """Put descriptors of their tensors in the place of arguments."""
    remaining = iter(numbers)
    for name, descriptor in descriptors.items():
        api, counts = descriptor
        lists = [[next(remaining) for _ in range(count)] for count in counts]
        if api == "stable":
            from triton.tools.tensor_descriptor import TensorDescriptor

            given[name] = TensorDescriptor.from_tensor(given[name], *lists)
            continue
        from triton.tools import experimental_descriptor

        extents, blocks, (size_bytes,) = lists
        make = getattr(experimental_descriptor, f"create_{len(extents)}d_tma_descriptor")
        given[name] = make(given[name].data_ptr(), *extents, *blocks, size_bytes)


# ---- operators ----


class _Defined:
    """The operators of this process. torch keeps each as long as the process, and so does this table."""

    def __init__(self) -> None:
        self._library = torch.library.Library(NAMESPACE, "FRAGMENT")
        self._kernels: dict[str, UserKernel] = {}
        self._lock = threading.Lock()

    def define(self, kernel: UserKernel) -> UserKernel:
        with self._lock:
            known = self._kernels.get(kernel.name)
            if known is not None:
                return known
            self._library.define(f"{kernel.name}{kernel.schema}")
            self._library.impl(kernel.name, kernel.call, "CompositeExplicitAutograd")
            self._library.impl(kernel.name, lambda *values: None, "Meta")
            self._kernels[kernel.name] = kernel
            return kernel

    def find(self, name: str) -> UserKernel | None:
        return self._kernels.get(name)


_DEFINED: Final = _Defined()


def find_kernel(target: str) -> UserKernel | None:
    """Return the kernel that the operator `target`, `"coilwork_kernels.name.default"`, launches; None if it
    is another operator."""
    namespace, _, name = target.partition(".")
    return _DEFINED.find(name.removesuffix(".default")) if namespace == NAMESPACE else None


def define_kernel(
    kernel: Any,
    values: Mapping[str, Any],
    *,
    written: Collection[str],
    descriptors: Mapping[str, Descriptor] = MappingProxyType({}),
    grids: int = 1,
) -> UserKernel | None:
    """Define the operator for calls of `kernel` like one with `values`, or find the one that there is.

    `values` are by parameter; fake tensors and open sizes stand for what differs from call to call. `written`
    are the parameters whose tensors the kernel writes, `grids` how many grids a launch has: one, or one for
    each configuration. None: it is no kernel of Triton's, or a list among `values` differs between calls.
    """
    function = _find_function(kernel)
    if function is None or any(_differs(value) for value in values.values()):
        return None
    places = {name: place for place, name in enumerate(kernel.arg_names)}
    arguments: dict[str, str] = {}
    constants: dict[str, Any] = {}
    formals: list[str] = []
    for parameter in sorted(values, key=lambda name: places.get(name, len(places))):
        kind = _schema_type(values[parameter])
        if kind is None:
            constants[parameter] = values[parameter]
            continue
        plain = parameter.isascii() and not parameter.startswith(("_", "launch_"))
        arguments[parameter] = parameter if plain else f"argument_{len(formals)}"
        formals.append(f"{kind}{f'(a{len(formals)}!)' * (parameter in written)} {arguments[parameter]}")
    lists = ["launch_descriptors"] * bool(descriptors) + ["launch_grid"]
    schema = f"({', '.join([*formals, *(f'SymInt[] {name}' for name in lists)])}) -> ()"
    described = (
        _describe_kernel(kernel),
        schema,
        tuple(arguments.items()),
        describe(constants),
        describe(dict(descriptors)),
        grids,
    )
    digest = hashlib.sha256(repr(described).encode()).hexdigest()[:_DIGITS]
    spelled = "".join(one if one.isascii() and one.isalnum() else "_" for one in function.__name__)
    return _DEFINED.define(
        UserKernel(
            kernel=kernel,
            name=f"{spelled.strip('_') or 'kernel'}_{digest}",
            schema=schema,
            arguments=MappingProxyType(arguments),
            constants=MappingProxyType(constants),
            descriptors=descriptors,
            grids=grids,
        )
    )


def _schema_type(value: object) -> str | None:
    """Return the type of an argument like `value` in a schema; None if it is a part of the operator."""
    match value:
        case torch.Tensor():
            return "Tensor"
        case torch.SymBool() | bool():
            return "bool"
        case float():
            return "float"
        case torch.SymFloat():
            # of floats, schemas know only those that are known
            return "Scalar"
        case torch.SymInt():
            return "SymInt"
        case int() if -_INT64 <= value < _INT64:
            return "SymInt"
        case str():
            return "str"
        case torch.dtype():
            return "ScalarType"
    return None


def _differs(value: object) -> bool:
    """Tell if a list holds something that may differ between calls."""
    kinds = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)
    return isinstance(value, list | tuple) and any(isinstance(one, kinds) for one in _items(value))


def _items(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _items(item)
    else:
        yield value


# ---- identity ----


def _find_function(kernel: Any) -> types.FunctionType | None:
    """Return the user's own function in a kernel; None if it is no kernel of Triton's."""
    try:
        from triton.runtime.autotuner import Autotuner, Heuristics
        from triton.runtime.jit import JITFunction
    except ImportError:
        return None
    while isinstance(kernel, Autotuner | Heuristics):
        kernel = kernel.fn
    if not isinstance(kernel, JITFunction):
        return None
    function: types.FunctionType = kernel.fn
    return function


# what an autotuner does around a launch: settings by the names that Triton gives them
_AUTOTUNER_SETTINGS: Final = (
    "keys",
    "reset_to_zero",
    "restore_value",
    "perf_model",
    "configs_top_k",
    "early_config_prune",
    "num_warmups",
    "num_reps",
    "use_cuda_graph",
)


def _describe_kernel(kernel: Any) -> object:
    """Return a value that prints alike for kernels that do the same, in every process."""
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.jit import JITFunction

    match kernel:
        case Autotuner():
            configs = [
                (describe(config.all_kwargs()), describe(config.pre_hook)) for config in kernel.configs
            ]
            settings = [describe(vars(kernel).get(name)) for name in _AUTOTUNER_SETTINGS]
            hooks = [
                describe(hook) if is_users else None
                for hook, is_users in (
                    (kernel.pre_hook, kernel.user_defined_pre_hook),
                    (kernel.post_hook, kernel.user_defined_post_hook),
                )
            ]
            return ("autotune", configs, settings, hooks, _describe_kernel(kernel.fn))
        case Heuristics():
            return ("heuristics", describe(kernel.values), _describe_kernel(kernel.fn))
        case JITFunction():
            # `cache_key` is of its source, those of its callees, and of the globals that they use
            options = (kernel.do_not_specialize, kernel.do_not_specialize_on_alignment)
            hooks = [describe(hook) for hook in kernel.pre_run_hooks]
            flags = (kernel.debug, kernel.noinline, describe(kernel.launch_metadata))
            return ("jit", kernel.cache_key, describe(options), hooks, flags)
    return describe(kernel)


def describe(value: object, known: frozenset[types.FunctionType] = frozenset()) -> str:
    """Return a text that is the same for equal values, in every process.

    A value without such a text, an object of the user's in a closure for one, gets one that no other has.
    Functions among `known` are being described.
    """
    from triton.language import constexpr
    from triton.language import dtype as TritonType
    from triton.runtime.jit import JITFunction

    match value:
        case None | bool() | int() | float() | str() | bytes() | torch.dtype() | torch.device():
            return f"{type(value).__name__} {value!r}"
        case list() | tuple():
            return f"{type(value).__name__}({', '.join(describe(one, known) for one in value)})"
        case dict():
            items = (f"{describe(key, known)}: {describe(one, known)}" for key, one in value.items())
            return f"{{{', '.join(items)}}}"
        case constexpr():
            return f"constexpr({describe(value.value, known)})"
        case TritonType():
            return f"type {value}"
        case JITFunction():
            return str(_describe_kernel(value))
        case types.FunctionType():
            return "itself" if value in known else _describe_function(value, known | {value})
        case types.BuiltinFunctionType() | type() | types.ModuleType():
            return f"{getattr(value, '__module__', '')}.{value.__name__}"
    return f"{type(value).__name__} {uuid.uuid4()}"


def _describe_function(function: types.FunctionType, known: frozenset[types.FunctionType]) -> str:
    """A text of what `function` does: its code, and the values that it finds outside."""
    codes = tuple(_list_codes(function.__code__))
    names = sorted({name for code in codes for name in code.co_names})
    outside = [(name, function.__globals__[name]) for name in names if name in function.__globals__]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            outside.append((name, cell.cell_contents))
        except ValueError:
            # it is not bound yet
            outside.append((name, object()))
    parts = (
        [(code.co_code, code.co_names, code.co_varnames) for code in codes],
        [describe(one) for code in codes for one in code.co_consts if not isinstance(one, types.CodeType)],
        [(name, describe(value, known)) for name, value in outside],
        describe((function.__defaults__, function.__kwdefaults__), known),
    )
    return f"function {hashlib.sha256(repr(parts).encode()).hexdigest()}"


def _list_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """`code`, and that of the functions inside it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _list_codes(one)
