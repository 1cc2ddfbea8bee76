"""Calls that torch's C interface cannot make, through operators of ours that Python makes them for.

The C interface carries no `Scalar`, no generator, no complex number, no value of any type, and no results
that are floats, lists beside tensors, or absent. A relay is an operator that takes the call's tensors and
computed integers as two lists and returns tensors alone, which the C interface does carry. All other
arguments are fixed and stand in its text. A program names its relays by their texts (`CppProgram.relayed`),
and they are registered where it is loaded. Such programs run in processes with Python alone.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch

from coilwork_cpp_wrapper.torch_compat import Library, new_library
from coilwork_ir.buffers import Argument, DeviceValue, Item, ListValue, Ref, TorchValue
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int
from coilwork_ir.program.nodes import ExternCall
from coilwork_runtime.executor.call_plans import make_callback
from coilwork_runtime.executor.program_reader import Item as RecordedItem
from coilwork_runtime.executor.program_reader import RecordedCall, Size, Slot

Encoded: TypeAlias = Any
"""An argument as JSON."""
NAMESPACE: Final = "coilwork_relays"

# ---- describe ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """The relay of one call.

    Attributes:
        text: everything that making the call takes, but for what changes from call to call.
        tensors, sizes: what does change, in order: names of buffers, and integers.
        wanted: the positions of the results that it returns, each as a tensor, in order.
    """

    text: str
    tensors: tuple[str, ...]
    sizes: tuple[Expr, ...]
    wanted: tuple[int, ...]

    @property
    def name(self) -> str:
        """`coilwork_relays::aten__histc_…`, the same for equal texts."""
        return f"{NAMESPACE}::{_name_of(self.text)}"


def describe_relay(call: ExternCall) -> Relay:
    """Return the relay that makes `call`."""
    tensors: list[str] = []
    sizes: list[Expr] = []

    def encode(value: Argument) -> Encoded:
        match value:
            case Ref(name) | Item(name):
                tensors.append(name)
                return {"item" if isinstance(value, Item) else "tensor": len(tensors) - 1}
            case Expr():
                fixed = as_int(value)
                if fixed is not None:
                    return fixed
                sizes.append(value)
                return {"size": len(sizes) - 1}
            case ListValue(items):
                return [encode(item) for item in items]
            case complex():
                return {"complex": [value.real, value.imag]}
            case DType():
                return {"torch": value.torch_name}
            case TorchValue(attribute):
                return {"torch": attribute}
            case DeviceValue(device):
                return {"device": device}
            case _:
                return value

    wanted = tuple(number for number, output in enumerate(call.outputs) if output is not None)
    described = {
        "target": call.target,
        "args": [encode(value) for value in call.args],
        "kwargs": {
            name: encode(value) for name, value in (*call.kwargs, *((k, Ref(name)) for k, name in call.out))
        },
        "single": call.single,
        "paths": call.paths,
        "wanted": wanted,
    }
    text = json.dumps(described, separators=(",", ":"))
    return Relay(text=text, tensors=tuple(tensors), sizes=tuple(sizes), wanted=wanted)


def find_target(text: str) -> str:
    """Return the operator that a relay calls: `"aten.histc.default"`."""
    target: str = json.loads(text)["target"]
    return target


def _name_of(text: str) -> str:
    """Return a name for people with a digest for the dispatcher."""
    readable = "__".join(find_target(text).split(".")[:2])
    return f"{readable}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


# ---- register ----


_REGISTERING: Final = threading.Lock()
_Relayed: TypeAlias = Callable[[list[torch.Tensor], list[int]], list[torch.Tensor]]


def register_relays(texts: Iterable[str]) -> None:
    """Register the relays of these texts that are not yet there."""
    for text in texts:
        with _REGISTERING:
            _register(text)


def _free_in_child() -> None:
    # a thread of the parent's may hold it, and none goes on with that here
    if _REGISTERING.locked():
        _REGISTERING.release()


os.register_at_fork(after_in_child=_free_in_child)


@functools.cache
def _library() -> Library:
    """Return the library of all relays; they live as long as it does."""
    return new_library(NAMESPACE)


@functools.cache
def _register(text: str) -> None:
    """Define an operator that makes the call.

    Its schema names no memory that is shared: nothing but C++ programs calls it, which know by themselves.
    """
    library, name = _library(), _name_of(text)
    library.define(f"{name}(Tensor[] tensors, SymInt[] sizes) -> Tensor[]")
    library.impl(name, _make_relay(json.loads(text)), "CompositeExplicitAutograd")


def _make_relay(described: Encoded) -> _Relayed:
    call = make_callback(
        RecordedCall(
            target=described["target"],
            args=tuple(_decode(value) for value in described["args"]),
            kwargs={name: _decode(value) for name, value in described["kwargs"].items()},
            device="",
            wanted=len(described["wanted"]),
            single=described["single"],
            paths=tuple(tuple(path) for path in described["paths"]),
        )
    )
    single: bool = described["single"] and not described["paths"]
    wanted: tuple[int, ...] = tuple(described["wanted"])

    def relay(tensors: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
        returned = call(tensors, sizes)
        results = (returned,) if single else returned
        return [_to_tensor(results[number]) for number in wanted]

    return relay


def _decode(value: Encoded) -> Any:
    match value:
        case list():
            return [_decode(item) for item in value]
        case {"tensor": number}:
            return Slot(number, is_float=False)
        case {"item": number}:
            return RecordedItem(Slot(number, is_float=False))
        case {"size": number}:
            return Size(number)
        case {"complex": [real, imaginary]}:
            return complex(real, imaginary)
        case {"torch": attribute}:
            return getattr(torch, attribute)
        case {"device": device}:
            return torch.device(device)
        case _:
            return value


def _to_tensor(value: Any) -> torch.Tensor:
    """Return a result; numbers travel as integers of 64 bits."""
    return value if isinstance(value, torch.Tensor) else torch.tensor(int(value))
