"""Everything that bad calls are made for: torch's operators, in place too, its modules, and ATen's operators
called directly.

Names tell them apart: `add`, `add in place` as `inplace.add`, `module.nn.Linear`, `aten.add.Tensor`, and
`function.fold` for what torch's databases lack.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from coilwork_lowering.torch_compat.operators import Overload
from integration_tests.modules.database import modules
from integration_tests.modules.database import samples as module_samples
from integration_tests.operators.children import run_in_child
from integration_tests.operators.database import Sample, operators, samples, tensors_of
from integration_tests.operators.good_calls import FUNCTIONS, MODULES, function_and_sample, module_and_sample

_SEED: Final = 1234
# Of an operator or module: what its arguments can be shows in these many good calls.
_SAMPLES: Final = 2
_INTEGERS: Final = (torch.float32, torch.int64, torch.bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Something to call, `takes_out` if it can write into a tensor that is given, and good calls of it."""

    function: Callable[..., Any]
    samples: Sequence[Sample]
    takes_out: bool = False


def subjects() -> list[str]:
    """All names."""
    database = operators()
    in_place = [f"inplace.{name}" for name, op in database.items() if op.inplace_variant is not None]
    built = [f"module.{name}" for name in (*modules(), *(f"nn.{name}" for name in MODULES))]
    return [*database, *in_place, *built, *(f"function.{name}" for name in FUNCTIONS), *sorted(_overloads())]


def subject_of(name: str, device: str) -> list[Subject]:
    """What goes by this name; several, as each module that is made is one, and nothing for lack of good
    calls.
    """
    if name.startswith("module."):
        return _modules(name.removeprefix("module."), device)
    if name.startswith("function."):
        function, sample = function_and_sample(name.removeprefix("function."))
        return [Subject(function=function, samples=[sample])] if device == "cpu" else []
    if name.startswith("aten."):
        found = _recorded(device).get(name, ())
        return [Subject(function=_overload(name), samples=found)] if found else []
    op = operators()[name.removeprefix("inplace.")]
    function = op.inplace_variant if name.startswith("inplace.") else op.op
    takes_out = op.supports_out and function is op.op
    chosen = _various(_good(op, device))
    return [Subject(function=function, samples=chosen, takes_out=takes_out)] if chosen else []


def _good(op: Any, device: str) -> list[Sample]:
    """Samples in the most common type that the operator has."""
    supported = op.supported_dtypes(device)
    dtype = next((one for one in _INTEGERS if one in supported), None)
    if dtype is None:
        dtype = next(iter(supported), None)
    if dtype is None:
        return []
    torch.manual_seed(_SEED)
    try:
        return samples(op, device, dtype, requires_grad=False, most=40)
    except Exception:  # noqa: BLE001  the database's own failures are not ours
        return []


def _various(given: Sequence[Sample]) -> list[Sample]:
    """A few samples with as many different arguments among them as there are, and none without elements."""
    found: list[Sample] = []
    seen: set[Any] = set()
    for sample in given:
        if any(tensor.numel() == 0 for tensor in tensors_of((sample.arguments, sample.keywords))):
            continue
        leaves, structure = pytree.tree_flatten((sample.arguments, sample.keywords))
        kinds = (str(structure), *(_kind(leaf) for leaf in leaves))
        if kinds not in seen:
            seen.add(kinds)
            found.append(sample)
    found.sort(key=lambda sample: -len(pytree.tree_leaves((sample.arguments, sample.keywords))))
    step = max(1, len(found) // _SAMPLES)
    return found[::step][:_SAMPLES]


def _kind(leaf: object) -> str:
    return f"{leaf.dtype}" if isinstance(leaf, torch.Tensor) else type(leaf).__name__


def _modules(name: str, device: str) -> list[Subject]:
    """The module as made by the first of its samples, in training and evaluation."""
    found = []
    if name.removeprefix("nn.") in MODULES:
        made = [module_and_sample(name.removeprefix("nn."), training=training) for training in (True, False)]
        return [Subject(function=one.to(device), samples=[sample]) for one, sample in made if device == "cpu"]
    for training in (True, False):
        try:
            given = module_samples(name, modules()[name], training=training)
        except Exception:  # noqa: BLE001  the database's own failures are not ours
            continue
        for one in given[:1]:
            moved = one.on(device)
            sample = Sample(arguments=moved.arguments, keywords=moved.keywords)
            found.append(Subject(function=moved.module, samples=[sample]))
    return found


def _overload(name: str) -> Any:
    _, packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def _overloads() -> Iterator[str]:
    """Every overload of ATen's, by the name that it has in a graph, but those that write into a tensor
    besides their operands.
    """
    for name in torch._C._dispatch_get_all_op_names():
        space, _, name = name.partition("::")
        if space == "aten" and not name.startswith("_test") and "out" not in name.partition(".")[2]:
            yield f"aten.{name}" if "." in name else f"aten.{name}.default"


@functools.cache
def _recorded(device: str) -> dict[str, list[Sample]]:
    """Calls of ATen's operators, as they come up in torch's samples, also in place, and their gradients.

    They are recorded in a process of their own, as gradients are taken.
    """
    return run_in_child(functools.partial(_record, device))


def _record(device: str) -> dict[str, list[Sample]]:
    recorder = _Recorder()
    for op in operators().values():
        if torch.float32 not in op.supported_dtypes(device) and torch.int64 not in op.supported_dtypes(
            device
        ):
            continue
        dtype = torch.float32 if torch.float32 in op.supported_dtypes(device) else torch.int64
        torch.manual_seed(_SEED)
        try:
            given = samples(op, device, dtype, requires_grad=op.supports_autograd, most=3)
        except Exception:  # noqa: BLE001  the database's own failures are not ours
            continue
        for sample in given:
            arguments, keywords = sample.fresh(requires_grad=op.supports_autograd)
            try:
                with recorder:
                    results = sample.finish(op.op(*arguments, **keywords))
                    for value in tensors_of(results):
                        if value.requires_grad:
                            value.sum().abs().backward(retain_graph=True)
            except Exception:  # noqa: BLE001  what came up before the error is as good
                continue
        _record_in_place(op, given[:1], recorder)
    return recorder.calls


def _record_in_place(op: Any, given: Sequence[Sample], recorder: _Recorder) -> None:
    for sample in given if op.inplace_variant is not None else ():
        arguments, keywords = sample.fresh()
        try:
            with recorder:
                op.inplace_variant(*arguments, **keywords)
        except Exception:  # noqa: BLE001  what came up before the error is as good
            continue


class _Recorder(TorchDispatchMode):
    """Notes the first call of each operator that is small."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[Sample]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(func)
        if isinstance(func, Overload) and func.namespace == "aten":
            kept = self.calls.setdefault(name, [])
            tensors = tensors_of((args, kwargs))
            if len(kept) < 1 and sum(one.numel() for one in tensors) < 10_000:
                copied = pytree.tree_map(
                    lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf,
                    (tuple(args), dict(kwargs or {})),
                )
                if all(one.numel() for one in tensors):
                    kept.append(Sample(arguments=copied[0], keywords=copied[1]))
        return func(*args, **(kwargs or {}))
