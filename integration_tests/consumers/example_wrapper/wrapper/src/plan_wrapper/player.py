"""Playing a plan: a table of what each step does to a frame of tensors and sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_runtime import generated as rt

Step = Mapping[str, Any]
Launcher = Callable[..., object]
ARITHMETIC: Final[Mapping[str, Callable[[int, int], int]]] = MappingProxyType(
    {"+": operator.add, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "min": min, "max": max}
)
RELATIONS: Final[Mapping[str, Callable[[int, int], bool]]] = MappingProxyType(
    {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le}
)


@dataclass(slots=True, kw_only=True)
class Frame:
    """The tensors and sizes that a plan knows while it is played."""

    launchers: Mapping[str, Launcher]
    constants: Mapping[str, torch.Tensor]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    streams: dict[str, Any] = field(default_factory=dict)
    results: tuple[Any, ...] = ()

    def size(self, expr: Any) -> int:
        """The value of a size."""
        if isinstance(expr, list):
            return reduce(ARITHMETIC[expr[0]], map(self.size, expr[1:]))
        return self.sizes[expr] if isinstance(expr, str) else int(expr)

    def shape(self, exprs: Sequence[Any]) -> tuple[int, ...]:
        """The values of several sizes."""
        return tuple(map(self.size, exprs))

    def value(self, argument: Any) -> Any:
        """The value of an argument."""
        match argument:
            case {"tensor": name}:
                return self.tensors[name]
            case {"item": name}:
                return self.tensors[name].item()
            case {"size": expr}:
                return self.size(expr)
            case {"torch": name}:
                return getattr(torch, name)
            case {"device": name}:
                return torch.device(name)
            case {"list": items}:
                return [self.value(item) for item in items]
            case _:
                return argument

    def work(self, stream: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `function` with its work put on a stream; "" is the call's own."""
        if not stream:
            return function(*args, **kwargs)
        return rt.on_stream(self.streams[stream], function, *args, **kwargs)

    def layout(self, step: Step) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
        """Shape, strides and element type of the buffer that a step names."""
        return self.shape(step["shape"]), self.shape(step["strides"]), getattr(torch, step["type"])

    def play(self, plan: Mapping[str, Any], args: list[Any]) -> tuple[Any, ...]:
        """The results of `plan` for these inputs, in a frame of its own; the list is emptied."""
        inner = Frame(launchers=self.launchers, constants=self.constants, sizes=dict(self.sizes))
        inner.tensors.update((name, self.constants[key]) for name, key in plan["constants"].items())
        for entry in plan["inputs"]:
            if "tensor" in entry:
                inner.tensors[entry["tensor"]] = args.pop(0)
                rt.check_rank(inner.tensors[entry["tensor"]], entry["tensor"], entry["rank"])
            else:
                inner.sizes[entry["size"]] = int(args.pop(0))
        for step in plan["steps"]:
            STEPS[step["do"]](inner, step)
        return inner.results


def _bind(frame: Frame, step: Step) -> None:
    tensor = frame.tensors[step["of"]]
    frame.sizes[step["symbol"]] = (tensor.shape if step["what"] == "size" else tensor.stride())[step["dim"]]


def _check(frame: Frame, step: Step) -> None:
    shape, strides, dtype = frame.layout(step)
    tensor, name = frame.tensors[step["name"]], step["name"]
    if not step["asserted"]:
        (frame.tensors[name],) = rt.ensure_aligned(tensor)
    elif step["aligned"]:
        frame.tensors[name] = rt.check_aligned_layout(tensor, name, dtype, step["on"], shape, strides)
    else:
        rt.check_layout(tensor, name, dtype, step["on"], shape, strides)


def _alloc(frame: Frame, step: Step) -> None:
    frame.tensors[step["name"]] = rt.empty_strided(*frame.layout(step), step["on"])


def _pool(frame: Frame, step: Step) -> None:
    frame.tensors[step["name"]] = rt.empty_pool(frame.size(step["bytes"]), step["device"])


def _carve(frame: Frame, step: Step) -> None:
    place = frame.tensors[step["of"]], frame.size(step["at"])
    frame.tensors[step["name"]] = rt.pool_view(*place, *frame.layout(step))


def _view(frame: Frame, step: Step) -> None:
    source, offset = frame.tensors[step["of"]], frame.size(step["at"])
    shape, strides, dtype = frame.layout(step)
    if dtype is source.dtype:
        frame.tensors[step["name"]] = rt.reinterpret(source, shape, strides, offset)
    else:
        frame.tensors[step["name"]] = rt.reinterpret_dtype(source, shape, strides, dtype, offset)
    if step["ends"]:
        del frame.tensors[step["of"]]


def _launch(frame: Frame, step: Step) -> None:
    tensors = [frame.tensors[name] for name in step["args"]]
    frame.work(step["stream"], frame.launchers[step["kernel"]], *tensors, *frame.shape(step["sizes"]))


def _call(frame: Frame, step: Step) -> None:
    function: Any = torch.ops
    for part in step["operator"].split("."):
        function = getattr(function, part)
    kwargs = {name: frame.value(value) for name, value in step["kwargs"].items()}
    kwargs |= {keyword: frame.tensors[name] for keyword, name in step["out"].items()}
    returned = frame.work(step["stream"], function, *map(frame.value, step["args"]), **kwargs)
    for output in step["outputs"]:
        if output is None:
            continue
        value = reduce(operator.getitem, output["path"], returned)
        if "symbol" in output:
            frame.sizes[output["symbol"]] = int(value)
            continue
        frame.sizes.update((symbol, value.shape[dim]) for symbol, dim in output["binds"])
        ensure = rt.ensure_aligned_layout if output["aligned"] else rt.ensure_layout
        frame.tensors[output["name"]] = ensure(value, *frame.layout(output))


def _copy(frame: Frame, step: Step) -> None:
    frame.work(step["stream"], frame.tensors[step["to"]].copy_, frame.tensors[step["of"]])


def _fork(frame: Frame, step: Step) -> None:
    frame.streams[step["name"]] = rt.fork_stream(step["device"], frame.streams.get(step["after"]))


def _record(frame: Frame, step: Step) -> None:
    frame.streams[step["name"]] = rt.record_event(step["device"], frame.streams.get(step["stream"]))


def _wait(frame: Frame, step: Step) -> None:
    if step["stream"] is None:
        rt.synchronize_event(frame.streams[step["event"]])
    else:
        rt.wait_event(frame.streams[step["event"]], frame.streams.get(step["stream"]))


def _join(frame: Frame, step: Step) -> None:
    rt.join_stream(frame.streams.pop(step["stream"]), frame.streams.get(step["into"]))


def _assert(frame: Frame, step: Step) -> None:
    if not RELATIONS[step["relation"]](frame.size(step["left"]), frame.size(step["right"])):
        raise RuntimeError(step["message"])


def _cond(frame: Frame, step: Step) -> None:
    plan = step["then"] if frame.tensors[step["if"]].item() else step["otherwise"]
    _take(frame, step, frame.play(plan, [frame.value(one) for one in step["operands"]]))


def _loop(frame: Frame, step: Step) -> None:
    carried: Sequence[Any] = [frame.value(one) for one in step["carried"]]
    extra = [frame.value(one) for one in step["extra"]]
    if step["rounds"] is None:
        while frame.play(step["condition"], [*carried, *extra])[0].item():
            carried = frame.play(step["body"], [*carried, *extra])
    else:
        for number in range(frame.size(step["rounds"])):
            carried = frame.play(step["body"], [*carried, *extra, number])
    _take(frame, step, carried)


def _run(frame: Frame, step: Step) -> None:
    _take(frame, step, frame.play(step["plan"], [frame.value(one) for one in step["operands"]]))


def _take(frame: Frame, step: Step, values: Sequence[torch.Tensor]) -> None:
    """Results of nested plans get memory of their own: a plan may return its operand."""
    for output, value in zip(step["outputs"], values, strict=True):
        frame.tensors[output["name"]] = rt.ensure_layout(value.clone(), *frame.layout(output))


def _free(frame: Frame, step: Step) -> None:
    for name in step["names"]:
        del frame.tensors[name]


def _return(frame: Frame, step: Step) -> None:
    frame.results = tuple(frame.value(value) for value in step["values"])


def _comment(frame: Frame, step: Step) -> None:
    """Words are for readers."""


STEPS: Final[Mapping[str, Callable[[Frame, Step], None]]] = MappingProxyType(
    {
        "bind": _bind,
        "check": _check,
        "alloc": _alloc,
        "pool": _pool,
        "carve": _carve,
        "view": _view,
        "launch": _launch,
        "call": _call,
        "copy": _copy,
        "fork": _fork,
        "record": _record,
        "wait": _wait,
        "join": _join,
        "assert": _assert,
        "cond": _cond,
        "loop": _loop,
        "run": _run,
        "free": _free,
        "comment": _comment,
        "return": _return,
    }
)
