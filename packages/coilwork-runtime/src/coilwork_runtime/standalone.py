"""Running a generated module by itself: made-up inputs, time and bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from coilwork_runtime.specs import KernelSpec, parse_argument

Sizes = Sequence[int]
WARM_UP_CALLS = 3
TIMED_CALLS = 20


def random_input(size: Sizes, stride: Sizes, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A tensor of this layout: normal values for floats, 0 or 1 for integers and bools (valid as any index)."""
    value = torch.empty_strided(tuple(size), tuple(stride), dtype=dtype, device=device)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.float32 if dtype.itemsize < 4 else dtype
        return value.copy_(torch.randn(tuple(size), dtype=wide, device=device))
    return value.copy_(torch.randint(0, 2, tuple(size), device=device))


def run_standalone(
    specs: Iterable[KernelSpec],
    make_call: Callable[
        [Mapping[str, Any], Mapping[str, torch.Tensor]], Callable[[list[Any]], Sequence[Any]]
    ],
    make_inputs: Callable[[], list[Any]],
    make_constants: Callable[[], Mapping[str, torch.Tensor]] = dict,
) -> None:
    """Build the kernels, call on made-up inputs, and print milliseconds and GB/s, per kernel and in total."""
    from coilwork_runtime.builder import Builder

    kernels = tuple(specs)
    launchers = Builder().build(kernels)
    meters = {spec.name: _Meter(spec, launchers[spec.name]) for spec in kernels}
    constants = make_constants()
    call = make_call(launchers, constants)
    inputs = make_inputs()
    for _ in range(WARM_UP_CALLS):
        call(list(inputs))
    _synchronize(inputs)
    start = time.perf_counter()
    for _ in range(TIMED_CALLS):
        call(list(inputs))
    _synchronize(inputs)
    total = (time.perf_counter() - start) / TIMED_CALLS
    make_call(meters, constants)(list(inputs))
    _synchronize(inputs)
    print(f"{'kernel':48} {'calls':>5} {'ms':>10} {'GB/s':>9}")
    for meter in meters.values():
        print(meter.row())
    print(f"{'one call in total':48} {'':>5} {total * 1e3:10.4f}")


class _Meter:
    """A launcher that times itself. Each launch is repeated, so it is only for kernels whose results do not matter."""

    def __init__(self, spec: KernelSpec, launcher: Callable[..., Any]) -> None:
        self._spec = spec
        self._launcher = launcher
        self._calls = 0
        self._seconds = 0.0
        self._bytes = 0.0
        names = [
            n for n, a in zip(spec.arg_names, spec.args, strict=False) if not parse_argument(a).is_pointer
        ]
        self._size_names = names
        self._traffic = compile(spec.bytes, spec.name, "eval") if spec.bytes else None

    def __call__(self, *args: Any) -> None:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        self._launcher(*args)
        _synchronize(tensors)
        start = time.perf_counter()
        for _ in range(TIMED_CALLS):
            self._launcher(*args)
        _synchronize(tensors)
        self._seconds += (time.perf_counter() - start) / TIMED_CALLS
        self._calls += 1
        if self._traffic is not None:
            sizes = args[len(args) - len(self._size_names) :] if self._size_names else ()
            self._bytes += eval(self._traffic, {}, dict(zip(self._size_names, sizes, strict=True)))

    def row(self) -> str:
        rate = f"{self._bytes / self._seconds / 1e9:9.1f}" if self._bytes and self._seconds else f"{'':>9}"
        return f"{self._spec.name:48} {self._calls:5} {self._seconds * 1e3:10.4f} {rate}"


def _synchronize(values: Sequence[Any]) -> None:
    if any(isinstance(v, torch.Tensor) and v.is_cuda for v in values):
        torch.cuda.synchronize()
