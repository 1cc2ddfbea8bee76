"""Calling a compiled Triton kernel: a function written out for its arguments, with the grid computed inside."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from coilwork_cache import Store
from coilwork_runtime.dtypes import torch_dtype
from coilwork_runtime.errors import DeviceError, KernelLaunchError
from coilwork_runtime.layouts import empty_strided_cuda
from coilwork_runtime.specs import Argument, TritonKernel
from coilwork_runtime.triton_kernels.binaries import GpuBinary
from coilwork_runtime.triton_kernels.driver import Kernel
from coilwork_runtime.triton_kernels.gpu import Gpu
from coilwork_runtime.triton_kernels.requests import constants_of, run_time_arguments
from coilwork_runtime.triton_kernels.tuning import choose, tuning_key

Launcher = Callable[..., None]

KINDS: Final[Mapping[str, str]] = {"i32": "i", "i64": "l"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A candidate that compiled."""

    config: Mapping[str, int]
    binary: GpuBinary


def make_launcher(spec: TritonKernel, built: Sequence[Built], gpu: Gpu, *, store: Store | None) -> Launcher:
    """A callable over tensors, then sizes. Its first call on a device loads the kernel and settles the configuration."""
    return _Kernel(spec, tuple(built), gpu, store).entry


class _Kernel:
    """One kernel on all devices. `entry` is what callers hold: it runs on the device of the first call, or asks `first`."""

    def __init__(self, spec: TritonKernel, built: tuple[Built, ...], gpu: Gpu, store: Store | None) -> None:
        self._spec = spec
        self._built = built
        self._gpu = gpu
        self._store = store
        self._arguments = run_time_arguments(spec)
        self._kinds = "".join("P" if a.is_pointer else KINDS[a.dtype] for _, a in self._arguments)
        self._lock = threading.RLock()
        self._devices: dict[int, Launcher] = {}
        self._scope: dict[str, Any] = {}
        self.entry = self._function(self._scope)

    def _function(self, scope: dict[str, Any]) -> Launcher:
        scopes_scratch = any(b.binary.scratch_bytes for b in self._built)
        text = launcher_text(self._spec, self._arguments, compiler_scratch=scopes_scratch)
        scope |= {
            "bound": None,
            "first": self._first,
            "current_device": self._gpu.current,
            "raw_stream": self._gpu.stream,
            "empty": _empty,
            "min": min,
            "max": max,
        }
        exec(compile(text, f"<coilwork launcher of {self._spec.name}>", "exec"), scope)
        launch: Launcher = scope["launch"]
        return launch

    def _first(self, *args: Any) -> None:
        """A call that `entry` cannot make: the first on a device, or one while another device is current."""
        device: int = args[0].get_device()
        if device < 0:
            raise DeviceError(
                "wrong-device",
                f"kernel {self._spec.name} was built for {self._spec.target or 'a GPU'} and called with CPU tensors",
                remedy="move the tensors to the GPU, or set TRITON_INTERPRET=1 before building to run it in Triton's interpreter",
            )
        with self._gpu.guard(device):
            launcher = self._devices.get(device)
            if launcher is None:
                with self._lock:
                    launcher = self._devices.get(device) or self._prepare(device, args)
            launcher(*args)

    def _prepare(self, device: int, args: Sequence[Any]) -> Launcher:
        """Load the candidates on the current device `device`, choose one, and make its launcher."""
        loaded = self._load(device)
        # launches that are recorded cannot be timed: the best guess then, without settling for it
        settled = len(loaded) == 1 or not self._gpu.capturing()
        index = 0
        if len(loaded) > 1 and settled:
            trials = [self._bind({}, device, config, kernel, size) for config, kernel, size in loaded]
            index = choose(
                trials,
                args,
                [a.role for _, a in self._arguments if a.role in ("in", "out", "inout")],
                measure=self._gpu.measure,
                store=self._store,
                key=tuning_key(
                    [candidate.binary for candidate in self._built],
                    self._gpu.name(device),
                    [a for a in args if isinstance(a, int)],
                ),
            )
        config, kernel, size = loaded[index]
        if not settled:
            return self._bind({}, device, config, kernel, size)
        scope = {} if self._devices else self._scope
        launcher = self._bind(scope, device, config, kernel, size)
        self._devices[device] = launcher
        return launcher

    def _load(self, device: int) -> list[tuple[Mapping[str, int], Kernel, int]]:
        """The candidates that the device takes; one that needs more shared memory than there is drops out."""
        loaded = []
        refusals: list[KernelLaunchError] = []
        for candidate in self._built:
            try:
                kernel = self._gpu.load(candidate.binary, device, self._kinds)
            except KernelLaunchError as error:
                refusals.append(error)
            else:
                loaded.append((candidate.config, kernel, candidate.binary.scratch_bytes))
        if not loaded:
            raise refusals[0]
        return loaded

    def _bind(
        self,
        scope: dict[str, Any],
        device: int,
        config: Mapping[str, int],
        kernel: Kernel,
        scratch_bytes: int,
    ) -> Launcher:
        launcher = scope["launch"] if scope else self._function(scope)
        scope |= constants_of(config)
        scope |= {"run": kernel, "scratch_bytes": scratch_bytes}
        # last: from here on `launch` uses the rest
        scope["bound"] = device
        bound: Launcher = launcher
        return bound


def launcher_text(
    spec: TritonKernel, arguments: Sequence[tuple[str, Argument]], *, compiler_scratch: bool
) -> str:
    """The launcher's Python. Its globals: `bound` (device index), `run` (the kernel), the configuration's constants."""
    parameters = [name for name, argument in arguments if argument.role != "scratch"]
    given = ", ".join(parameters)
    tensor = next(name for name, argument in arguments if argument.role in ("in", "out", "inout"))
    grid = [ast.unparse(ast.parse(text, mode="eval")) for text in spec.grid]
    grid += ["1"] * (3 - len(grid))
    passed = [
        f"empty({argument.elements}, {argument.dtype!r}, bound)" if argument.role == "scratch" else name
        for name, argument in arguments
    ]
    own = "0"
    if compiler_scratch:
        blocks = " * ".join(f"({extent})" for extent in grid)
        own = f"empty({blocks} * scratch_bytes, 'u8', bound)"
    return (
        f"def launch({given}):\n"
        f"    if {tensor}.get_device() != bound or current_device() != bound:\n"
        f"        return first({given})\n"
        f"    run({', '.join(grid)}, raw_stream(bound), {own}, {', '.join(passed)})\n"
    )


def _empty(elements: int, dtype: str, device: int) -> torch.Tensor:
    return empty_strided_cuda((elements,), (1,), torch_dtype(dtype), device)
