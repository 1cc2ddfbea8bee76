"""Load kernels from bytes and generated modules from text, and run a module standalone.

A generated module is a view for people. Run as a script, it builds its kernels, calls itself on made-up
inputs, and prints time and bandwidth of each kernel.
"""

from __future__ import annotations

import linecache
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, product
from typing import Any, Final

import torch

from coilwork_runtime.builder import Builder
from coilwork_runtime.errors import ModuleTextError, ProgramBytesError
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.kernel_manifest import KernelSpec, decode_kernels

Call = Callable[[list[Any]], Sequence[Any]]
MakeCall = Callable[[Mapping[str, Any], Mapping[str, torch.Tensor]], Call]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedModule:
    """A generated module: its kernels, and a function that makes its `call` of launchers and constants."""

    specs: tuple[KernelSpec, ...]
    make_call: MakeCall


def load_kernels(data: bytes) -> tuple[KernelSpec, ...]:
    """Return the kernels in `data`, as `coilwork_ir.kernel_source` writes them; nothing is built.

    Raises:
        ProgramBytesError: the bytes are damaged, or of another schema.
    """
    try:
        return decode_kernels(data)
    except ValueError as error:
        raise ProgramBytesError(
            "damaged-kernels",
            "the kernels of a program cannot be read",
            reason=str(error),
            remedy="clear the cache that they came from, or compile again",
        ) from error


def load_python(text: str, *, builder: Builder, constants: Mapping[str, torch.Tensor], name: str) -> Call:
    """Execute a generated module, build its kernels, and return its `call`.

    The text is registered with `linecache`, so that tracebacks through generated code show its lines. `name`
    appears in the pseudo file name there.

    Raises:
        ModuleTextError: the text is not a generated module.
        KernelBuildError: a kernel does not build.
    """
    module = execute_module(text, name)
    return module.make_call(builder.build(module.specs), constants)


def execute_module(text: str, name: str) -> GeneratedModule:
    """Execute the text of a generated module; nothing is built.

    Raises:
        ModuleTextError: the text is not a generated module.
    """
    file = f"<coilwork {name}>"
    scope: dict[str, Any] = {"__name__": f"coilwork_generated.{name}", "__file__": file}
    try:
        code = compile(text, file, "exec")
    except (SyntaxError, ValueError) as error:
        raise ModuleTextError(
            "module-syntax",
            f"generated module {name} is damaged",
            reason=str(error),
            remedy="clear the cache that it came from, or generate it again",
        ) from error
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(code, scope)
    specs, make_call = scope.get("KERNELS"), scope.get("make_call")
    if not isinstance(specs, tuple) or not all(isinstance(spec, KernelSpec) for spec in specs):
        raise _incomplete(name, "KERNELS, a tuple of kernels")
    if not callable(make_call):
        raise _incomplete(name, "the function make_call")
    return GeneratedModule(
        specs=specs, make_call=lambda launchers, given: make_call(_calls(launchers), given)
    )


def _calls(launchers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the functions that the module calls by name: the launches themselves, which saves a call in
    between.
    """
    return {name: one.call if isinstance(one, Launcher) else one for name, one in launchers.items()}


def _incomplete(name: str, what: str) -> ModuleTextError:
    return ModuleTextError(
        "module-contents",
        f"generated module {name} does not define {what}",
        remedy="clear the cache that it came from, or generate it again",
    )


# ---- standalone runs ----


Sizes = Sequence[int]
WARM_UP_CALLS: Final = 3
TIMED_CALLS: Final = 20


def random_input(size: Sizes, stride: Sizes, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return a tensor of this layout: normal values for floats, 0 or 1 for integers and bools (valid as
    any index).
    """
    if any(step == 0 and extent > 1 for extent, step in zip(size, stride, strict=True)):
        # made with one element where all are the same one
        kept = tuple(1 if step == 0 else extent for extent, step in zip(size, stride, strict=True))
        return random_input(kept, stride, dtype, device).as_strided(tuple(size), tuple(stride))
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
    """Build the kernels, call on made-up inputs, and print milliseconds and GB/s, per kernel and in total.

    Each kernel is timed in its place in the program, launched several times in a row; then the whole program
    is.
    """
    kernels = tuple(specs)
    launchers = Builder().build(kernels)
    constants = make_constants()
    inputs = make_inputs()
    on_gpu = any(isinstance(v, torch.Tensor) and v.is_cuda for v in (*inputs, *constants.values()))
    clock = _gpu_milliseconds if on_gpu else _cpu_milliseconds
    call = make_call(launchers, constants)
    if not on_gpu:
        # a check that fails on a GPU ends the process's use of it
        inputs = find_fitting_inputs(call, inputs)
    total = clock(lambda: call(list(inputs)))
    meters = {spec.name: _Meter(spec, launchers[spec.name], clock) for spec in kernels}
    make_call(meters, constants)(list(inputs))
    print(f"{'kernel':48} {'calls':>5} {'ms':>10} {'GB/s':>9}")
    for meter in meters.values():
        print(meter.row())
    inside = sum(meter.milliseconds for meter in meters.values())
    moved = sum(meter.bytes for meter in meters.values())
    print(_row("all kernels", sum(meter.calls for meter in meters.values()), inside, moved))
    print(_row("one call in total", 1, total, moved))


FILLINGS: Final = (0, 1, 2, 3, 4, 6, 8, 16, 32, 64)
"""Whole numbers that may pass a program's checks of data: positions, sizes and divisors are small."""
MOST_TRIES: Final = 400


def find_fitting_inputs(call: Call, inputs: Sequence[Any]) -> list[Any]:
    """Return `inputs` if `call` takes them, else the first ones that it takes with other whole numbers.

    Tensors of integers and bools are filled with one number each; all others stay. Some programs check their
    data: that positions are in range, or a size is as large as another.

    Raises:
        IndexError, RuntimeError, ValueError, ZeroDivisionError: what the program says of `inputs`, if none of
            the others is taken.
    """
    first = _try_call(call, inputs)
    if first is None:
        return list(inputs)
    chosen = [
        n for n, value in enumerate(inputs) if isinstance(value, torch.Tensor) and value.dtype in _WHOLE
    ]
    alike = ((number,) * len(chosen) for number in FILLINGS)
    for numbers in islice(chain(alike, product(FILLINGS, repeat=len(chosen))), MOST_TRIES):
        filled = list(inputs)
        for place, number in zip(chosen, numbers, strict=True):
            filled[place] = _apply_to_span(inputs[place], partial(torch.full_like, fill_value=number))
        if _try_call(call, filled) is None:
            return filled
    raise first


_WHOLE: Final = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def _apply_to_span(value: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return what `make` makes of the line of memory that `value` spans, in the layout of `value`."""
    last = sum((extent - 1) * step for extent, step in zip(value.shape, value.stride(), strict=True))
    line = value.as_strided((last + 1 if value.numel() else 0,), (1,))
    return make(line).as_strided(value.shape, value.stride())


def _try_call(call: Call, inputs: Sequence[Any]) -> Exception | None:
    """Call `call` with copies of `inputs`; return its error, or None."""
    copies = [
        _apply_to_span(value, torch.clone) if isinstance(value, torch.Tensor) else value for value in inputs
    ]
    try:
        call(copies)
    except (IndexError, RuntimeError, ValueError, ZeroDivisionError) as error:
        return error
    return None


class _Meter:
    """A launcher that times itself. Each launch is repeated, so it is only for kernels whose results do not
    matter.
    """

    def __init__(
        self,
        spec: KernelSpec,
        launcher: Callable[..., Any],
        clock: Callable[[Callable[[], Any]], float],
    ) -> None:
        self._name = spec.name
        self._launcher = launcher
        self._clock = clock
        self._sizes = len(spec.sizes)
        self._traffic = spec.traffic
        self.calls = 0
        self.milliseconds = 0.0
        self.bytes = 0.0

    def __call__(self, *args: Any) -> None:
        self.milliseconds += self._clock(lambda: self._launcher(*args))
        self.calls += 1
        if self._traffic is not None:
            self.bytes += self._traffic.evaluate(args[len(args) - self._sizes :])

    def row(self) -> str:
        return _row(self._name, self.calls, self.milliseconds, self.bytes)


def _row(name: str, calls: int, milliseconds: float, moved_bytes: float) -> str:
    rate = f"{moved_bytes / milliseconds / 1e6:9.1f}" if moved_bytes and milliseconds else f"{'':>9}"
    return f"{name:48} {calls:5} {milliseconds:10.4f} {rate}"


def _cpu_milliseconds(call: Callable[[], Any]) -> float:
    for _ in range(WARM_UP_CALLS):
        call()
    start = time.perf_counter()
    for _ in range(TIMED_CALLS):
        call()
    return (time.perf_counter() - start) / TIMED_CALLS * 1e3


def _gpu_milliseconds(call: Callable[[], Any]) -> float:
    for _ in range(WARM_UP_CALLS):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(TIMED_CALLS):
        call()
    end.record()
    end.synchronize()
    elapsed_ms: float = start.elapsed_time(end)
    return elapsed_ms / TIMED_CALLS
