"""Everything that a program may be given, made from texts; run as a script, a child process that calls a
program with it.

It reads a line for each call, and writes one of what became of it: a crash of the process is the end of its
output.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, Final

import numpy
import torch
from executor_assembly import CHECK, Assembly, u8
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from coilwork_cache import open_local_store
from coilwork_runtime import Builder, NativeProgram, guard_call, load_native
from coilwork_runtime.generated import CppKernel
from coilwork_runtime.tensor_kinds import PLAIN

SIDE: Final = 64
SOURCE: Final = """
#include <cstdint>
extern "C" __attribute__((visibility("default"))) void add(const float* a, const float* b, float* c, int64_t \
n) {
  for (int64_t i = 0; i < n; ++i) c[i] = a[i] + b[i];
}
"""


def as_operators(args: list[Any]) -> Sequence[Any]:
    """What the program does, as torch's operators."""
    a, b, n = args
    args.clear()
    return [torch.mm(torch.add(a, b), b), n]


def make_program() -> NativeProgram:
    """Adds two squares with a kernel, multiplies the sum by the second, and returns a number as it is."""
    asm = Assembly("net")
    asm.input("a")
    asm.input("b")
    number = asm.size_input()
    square = asm.layout(SIDE, SIDE)
    asm.add(CHECK, asm.slot("a") + square + u8(0))
    asm.add(CHECK, asm.slot("b") + square + u8(1))
    asm.alloc("sum", square)
    asm.launch("add", ["a", "b", "sum"], [asm.number(SIDE * SIDE)])
    asm.alloc("y", square)
    asm.call("aten.mm.out", [asm.ref("sum"), asm.ref("b")], out=[("out", "y")])
    spec = CppKernel(
        name="add", source=SOURCE, entry="add", args=("*in:f32", "*in:f32", "*out:f32", "size:i64")
    )
    store = open_local_store()
    return load_native(
        asm.returns("y", number),
        launchers=Builder(store).build([spec]),
        constants={},
        fallback=lambda: as_operators,
        operators=as_operators,
        store=store,
    )


class Plain(Tensor):
    """A subclass that sees functions, not operators."""


class Wrapper(Tensor):
    """A subclass without memory that runs operators on the tensor within."""

    within: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        made: Wrapper = Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )
        made.within = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, *given: Any, **more: Any) -> Any:
        func, _, *rest = given
        args, kwargs = (*rest, (), {})[:2]
        inside = [arg.within if isinstance(arg, Wrapper) else arg for arg in args]
        return cls(func(*inside, **(kwargs or {})))


class Silent(TorchDispatchMode):
    """Lets operators pass."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _freed(bytes_left: int) -> Tensor:
    value = torch.randn(SIDE, SIDE)
    value.untyped_storage().resize_(bytes_left)
    return value


def _given_away() -> Tensor:
    value = torch.randn(SIDE, SIDE)
    value.data = torch.empty(0)
    return value


def _fake() -> Tensor:
    with FakeTensorMode():
        return torch.randn(SIDE, SIDE)


def _functional() -> Any:
    with FunctionalTensorMode():
        return torch._subclasses.functional_tensor.FunctionalTensor.to_functional(torch.randn(SIDE, SIDE))


def _inference() -> Tensor:
    with torch.inference_mode():
        return torch.randn(SIDE, SIDE)


def _complex() -> Tensor:
    return torch.randn(SIDE, SIDE, dtype=torch.complex64)


def _square(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(*(shape or (SIDE, SIDE)), dtype=dtype)


FITTING: Final[Mapping[str, Callable[[], Any]]] = MappingProxyType(
    {
        "plain": lambda: torch.randn(SIDE, SIDE),
        "a part": lambda: torch.randn(SIDE + 2, SIDE)[1:-1],
        "at an odd place": lambda: torch.randn(SIDE * SIDE + 1)[1:].view(SIDE, SIDE),
        "parameter": lambda: torch.nn.Parameter(torch.randn(SIDE, SIDE)),
        "wants gradients": lambda: torch.randn(SIDE, SIDE, requires_grad=True),
        "buffer": lambda: torch.nn.Buffer(torch.randn(SIDE, SIDE)),
        "subclass": lambda: torch.randn(SIDE, SIDE).as_subclass(Plain),
        "inference": _inference,
    }
)
"""Tensors that a program takes."""
OTHERS: Final[Mapping[str, Callable[[], Any]]] = MappingProxyType(
    {
        "meta": lambda: torch.empty(SIDE, SIDE, device="meta"),
        "fake": _fake,
        "functional": lambda: torch._to_functional_tensor(torch.randn(SIDE, SIDE)),
        "functional object": _functional,
        "wrapper": lambda: Wrapper(torch.randn(SIDE, SIDE)),
        "zeros without memory": lambda: torch._efficientzerotensor((SIDE, SIDE)),
        "negated": lambda: _complex().conj().imag,
        "conjugate": lambda: _complex().conj(),
        "sparse": lambda: torch.eye(SIDE).to_sparse(),
        "rows": lambda: torch.eye(SIDE).to_sparse_csr(),
        "opaque": lambda: torch.randn(SIDE, SIDE).to_mkldnn(),
        "quantized": lambda: torch.quantize_per_tensor(torch.randn(SIDE, SIDE), 0.1, 0, torch.qint8),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "without a shape": torch.nn.UninitializedParameter,
        "given away": _given_away,
        "turned": lambda: torch.randn(SIDE, SIDE).t(),
        "expanded": lambda: torch.randn(SIDE).expand(SIDE, SIDE),
        "overlapping": lambda: torch.randn(SIDE * 2).as_strided((SIDE, SIDE), (1, 1)),
        "wide": lambda: _square(dtype=torch.float64),
        "narrow": lambda: _square(dtype=torch.bfloat16),
        "complex": _complex,
        "numbers": lambda: _square(dtype=torch.int64),
        "bits": lambda: _square(dtype=torch.bool),
        "empty": lambda: torch.empty(0),
        "single": lambda: torch.tensor(1.0),
        "few": lambda: _square(SIDE, SIDE - 1),
        "deep": lambda: _square(1, SIDE, SIDE),
        "none": lambda: None,
        "number": lambda: 3,
        "real": lambda: 2.5,
        "text": lambda: "text",
        "list": lambda: [torch.randn(2)],
        "array": lambda: torch.randn(SIDE, SIDE).tolist(),
        "object": object,
        "type": lambda: Tensor,
        "proxy": lambda: fx.Proxy(fx.Graph().placeholder("x")),
    }
)
"""What a program does not read as it is; eager says what becomes of it."""
WITHOUT_MEMORY: Final[Mapping[str, Callable[[], Any]]] = MappingProxyType(
    {"freed": lambda: _freed(0), "short": lambda: _freed(100)}
)
"""Tensors that eager itself must not be given."""
NUMBERS: Final[Mapping[str, Callable[[], Any]]] = MappingProxyType(
    {
        "7": lambda: 7,
        "-1": lambda: -1,
        "largest": lambda: (1 << 63) - 1,
        "least": lambda: -(1 << 63),
        "huge": lambda: 1 << 70,
        "huge and negative": lambda: -(1 << 70),
        "nan": lambda: float("nan"),
        "numpy's integer": lambda: numpy.int64(7),
        "numpy's float": lambda: numpy.float64(7.0),
        "symbolic": lambda: ShapeEnv().create_unbacked_symint(),
        "true": lambda: True,
        "real": lambda: 2.5,
        "none": lambda: None,
        "text": lambda: "7",
        "tensor": lambda: torch.tensor(7),
    }
)
MODES: Final[Mapping[str, Callable[[], AbstractContextManager[Any]]]] = MappingProxyType(
    {
        "none": nullcontext,
        "fake": FakeTensorMode,
        "fake beside real": lambda: FakeTensorMode(allow_non_fake_inputs=True),
        "flops": lambda: FlopCounterMode(display=False),
        "silent": Silent,
        "functional": FunctionalTensorMode,
        "inference": torch.inference_mode,
        "gradients": torch.enable_grad,
        "autocast": lambda: torch.autocast("cpu"),
    }
)
FORMS: Final = ("list", "one by one", "guarded")


def value_of(name: str) -> Any:
    """The tensor or other thing of this name."""
    return {**FITTING, **OTHERS, **WITHOUT_MEMORY}[name]()


def told(value: Any) -> str:
    """What matters of a result."""
    if not isinstance(value, Tensor):
        return type(value).__name__ if isinstance(value, fx.Proxy) else repr(value)
    try:
        shape = str(tuple(value.shape))
    # nested tensors and parameters that are to be made later have none that one can ask for
    except RuntimeError as error:
        shape = str(error)
    return f"{type(value).__name__} {value.dtype} {value.device} {value.layout} {shape}"


def outcome(call: Callable[[], Sequence[Any]]) -> tuple[str, Sequence[Any]]:
    """What a call returns, in words and as it is, or raises."""
    try:
        results = call()
    # whatever it raises, it is an answer
    except Exception as error:  # noqa: BLE001
        return f"raised {type(error).__name__}", ()
    return "; ".join(map(told, results)), results


def answer(program: NativeProgram, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What becomes of a call, and of the same in eager mode if that can be asked; and whether the numbers are
    the same.
    """
    names = asked["tensors"]
    given = [value_of(name) for name in names]
    given += [NUMBERS[name]() for name in asked["numbers"]]
    calls: Mapping[str, Callable[[], Sequence[Any]]] = {
        "list": lambda: program.call(list(given)),
        "one by one": lambda: program.direct(*given),
        "guarded": lambda: guard_call(program.call, as_operators, PLAIN)(list(given)),
    }
    safe = not set(names) & set(WITHOUT_MEMORY)
    with MODES[asked["mode"]]():
        expected, wanted = outcome(lambda: as_operators(list(given))) if safe else ("", ())
        found, results = outcome(calls[asked["form"]])
    plain = [
        (a, b)
        for a, b in zip(results, wanted, strict=False)
        if type(a) is type(b) is Tensor and set(names) <= set(FITTING)
    ]
    return {"found": found, "expected": expected, "same": all(torch.equal(a, b) for a, b in plain)}


def main() -> None:
    """Answer each line of the input with one of the output."""
    warnings.simplefilter("ignore")
    program = make_program()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(program, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
