"""The tensors that programs may read: in memory, of the kinds that were compiled for, and not watched.

Fake and functional tensors, subclasses that see operators, batched and meta tensors have no memory, or other
contents than it. A mode of `torch.utils._python_dispatch` that is active wants to see operators. For such
calls there is the graph as torch's operators.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from coilwork_runtime.errors import LayoutError
from coilwork_runtime.layout_checks import check_memory
from coilwork_runtime.native_build import EXECUTOR
from coilwork_runtime.torch_compat import are_operators_watched, dispatch_keys, get_key_bits

Call = Callable[[list[Any]], Sequence[Any]]

_COMMON: Final = get_key_bits(
    *(
        "CPU",
        "CUDA",
        "ADInplaceOrView",
        "AutogradCPU",
        "AutogradCUDA",
        "AutogradOther",
        "AutocastCPU",
        "AutocastCUDA",
    )
)
# Of a tensor in the CPU's memory, without what any stored tensor has.
ON_CPU: Final = get_key_bits("CPU") & ~get_key_bits("CUDA")
# Of a weight that lies in oneDNN's blocks, and has no other.
_PACKED: Final = get_key_bits("MkldnnCPU")
# Of a tensor that operators read with another sign.
MARKS: Final = get_key_bits("Conjugate", "Negative")
# The same of one in no memory.
ON_META: Final = get_key_bits("Meta") & ~get_key_bits("CPU")
# A quantised tensor is memory, of an element type of its own.
_STORED: Final = get_key_bits("Dense", "Quantized")
_WATCHED: Final = get_key_bits("Python", "PythonTLSSnapshot")
_SYMBOLIC: Final = (torch.SymInt, torch.SymFloat, torch.SymBool, fx.Proxy)


@dataclass(frozen=True, slots=True)
class TensorKinds:
    """Kinds of tensors, by their keys in torch's dispatcher.

    Attributes:
        allowed: keys that a tensor may have.
        required: keys of which it has to have one.
        resized: the program resizes memory, so that tensors may come without theirs.
    """

    allowed: int = _COMMON | _STORED
    required: int = _STORED
    resized: bool = False

    @property
    def keys(self) -> tuple[int, int]:
        """Both sets."""
        return self.allowed, self.required


PLAIN: Final = TensorKinds()


def collect_kinds(examples: Iterable[object], *, resized: bool = False, packed: bool = False) -> TensorKinds:
    """Return the kinds of tensors that a program may read: those in memory, and those of the `examples`.

    Fake examples stand for real ones, but do not show which are `packed` for oneDNN: some if it is true.
    `resized` as in `TensorKinds`.
    """
    keys = _PACKED if packed else 0
    for value in examples:
        if isinstance(value, torch.Tensor):
            keys |= dispatch_keys(value)
    keys &= ~(_WATCHED | _COMMON)
    return TensorKinds(PLAIN.allowed | keys, PLAIN.required | keys, resized)


def guard_call(call: Call, operators: Call, kinds: TensorKinds) -> Call:
    """Return a call of a program: by `call`, or for tensors of other kinds by `operators`, which are torch's.

    Raises, when called:
        LayoutError: the memory of a tensor is not there any more.
    """
    keys = kinds.keys
    run_checked = check_memory_first(operators, kinds)

    def run(args: list[Any]) -> Sequence[Any]:
        extension = sys.modules.get(EXECUTOR)
        foreign = None if extension is None else extension.any_foreign(args, keys)
        if foreign is None:
            foreign = _has_foreign(args, kinds)
        return run_checked(args) if foreign else call(args)

    return run


def _has_foreign(args: list[Any], kinds: TensorKinds) -> bool:
    if are_operators_watched():
        return True
    if any(isinstance(value, _SYMBOLIC) or _is_foreign(value, kinds) for value in args):
        return True
    _check_memories(args, kinds)
    return False


def check_memory_first(operators: Call, kinds: TensorKinds) -> Call:
    """`operators`, which are not called with tensors whose memory was given back.

    Torch's own kernels read it all the same.
    """

    def run_checked(args: list[Any]) -> Sequence[Any]:
        _check_memories(args, kinds)
        return operators(args)

    return run_checked


def _check_memories(args: list[Any], kinds: TensorKinds) -> None:
    if kinds.resized:
        return
    for value in args:
        if isinstance(value, torch.Tensor) and not _is_foreign(value, PLAIN):
            check_memory(value, "of a program")


def _is_foreign(value: object, kinds: TensorKinds) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    keys = dispatch_keys(value)
    return bool(keys & ~kinds.allowed) or not keys & kinds.required


def _describe(value: object) -> str:
    name = type(value).__name__
    return f"{name} on {value.device.type}" if isinstance(value, torch.Tensor) else name


def refuse_operators(args: list[Any]) -> Sequence[Any]:
    """Refuse a call that only torch's operators could serve, for a program that came without them.

    Raises:
        TypeError: an input is neither a tensor nor a number.
        LayoutError: the tensors are none in memory.
    """
    kinds = ", ".join(dict.fromkeys(map(_describe, args)))
    if not any(isinstance(value, _SYMBOLIC) or _is_foreign(value, PLAIN) for value in args):
        if not all(isinstance(value, torch.Tensor | int) for value in args):
            raise TypeError(f"a program takes tensors and integers, and is given {kinds}")
    raise LayoutError(
        "input-kind",
        "a program reads memory, and is given tensors without, "
        "or is called while a dispatch mode watches operators",
        reason=f"it is given {kinds}",
        remedy="call it with tensors in memory, or call the model that it was compiled from",
    )
