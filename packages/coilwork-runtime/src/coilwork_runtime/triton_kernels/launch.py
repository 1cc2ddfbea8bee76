"""Calling a compiled Triton kernel: a function written out for its arguments, with the grid computed inside."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from coilwork_cache import Store
from coilwork_runtime.dtypes import torch_dtype
from coilwork_runtime.errors import DeviceError, KernelBuildError, KernelLaunchError
from coilwork_runtime.executor.forms import NATIVE, NativeLaunch, gpu_form, join_forms
from coilwork_runtime.layouts import empty_strided_cuda
from coilwork_runtime.specs import Argument, TritonKernel
from coilwork_runtime.triton_kernels.binaries import GpuBinary
from coilwork_runtime.triton_kernels.descent import identity
from coilwork_runtime.triton_kernels.gpu import Gpu, LoadedKernel
from coilwork_runtime.triton_kernels.neighbours import Config, Space
from coilwork_runtime.triton_kernels.remembered import magnitudes, recall, remember
from coilwork_runtime.triton_kernels.requests import constants_of, run_time_arguments
from coilwork_runtime.triton_kernels.searching import Ready, Search, Workshop, search
from coilwork_runtime.triton_kernels.tuning import (
    choose,
    expendable_arguments,
    tuning_key,
    without_spills,
)
from coilwork_runtime.triton_kernels.versions import (
    choice_text,
    mapping_text,
    select_version,
    version_of,
)

Launcher = Callable[..., None]

KINDS: Final[Mapping[str, str]] = {"i32": "i", "i64": "l"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A candidate that compiled."""

    config: Mapping[str, int]
    binary: GpuBinary


@dataclass(frozen=True, slots=True, kw_only=True)
class Explore:
    """A search beyond the candidates: how far it may go, and what builds other configurations, several at once."""

    search: Search
    compile: Callable[[Sequence[Config]], Sequence[GpuBinary | KernelBuildError]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """A configuration on a device."""

    config: Config
    binary: GpuBinary
    kernel: LoadedKernel


def make_launcher(
    spec: TritonKernel,
    built: Sequence[Built],
    gpu: Gpu,
    *,
    store: Store | None,
    explore: Explore | None = None,
) -> Launcher:
    """A callable over tensors, then sizes. Its first call on a device loads the kernel and settles the configuration.

    What a search once found for such sizes is taken if it is among `built`. Else, with `explore`, there is a search.
    """
    if len(spec.guards) == 1:
        return _Kernel(spec, tuple(built), gpu, store, explore).entry
    last = len(spec.guards) - 1
    versions: list[_Kernel] = []
    for number in range(last, -1, -1):
        own = tuple(one for one in built if version_of(spec, one.config) == number)
        # in place of one that does not compile there is that for all sizes
        if own or number == last:
            search = None if number else explore
            versions.append(_Kernel(select_version(spec, number), own, gpu, store, search))
        else:
            versions.append(versions[0])
    versions.reverse()
    return _Versions(spec, versions).entry


# How often calls that only other versions are for wait for one of the first version's, which times its
# candidates.
_PATIENCE: Final = 8


class _Versions:
    """A kernel in several versions, that for the fewest sizes first."""

    def __init__(self, spec: TritonKernel, versions: Sequence[_Kernel]) -> None:
        self._spec = spec
        self._asked = 0
        self._versions = versions
        parameters = [name for name, one in versions[0].arguments if one.role != "scratch"]
        scope: dict[str, Any] = {
            "versions": tuple(kernel.entry for kernel in versions),
            "min": min,
            "max": max,
        }
        text = choice_text(spec, parameters)
        exec(compile(text, f"<coilwork launcher of {spec.name}>", "exec"), scope)
        self.entry: Launcher = scope["launch"]
        vars(self.entry)[NATIVE] = NativeLaunch(form=self._native_form)

    def _native_form(self) -> bytes | None:
        """How all versions are launched on the first device; `None` before one was, and for a while before the first one was settled."""
        device = next((k.first_device for k in self._versions if k.form is not None), None)
        if device is None:
            return None
        self._asked += 1
        found = [kernel.form_on(device, guess=self._asked > _PATIENCE) for kernel in self._versions]
        known = [form for form in found if form is not None]
        if len(known) < len(found):
            return None
        sizes = [name for name, argument in self._versions[0].arguments if argument.role == "size"]
        return join_forms(known, self._spec.guards, sizes)


class _Kernel:
    """One kernel on all devices. `entry` is what callers hold: it runs on the device of the first call, or asks `first`."""

    def __init__(
        self,
        spec: TritonKernel,
        built: tuple[Built, ...],
        gpu: Gpu,
        store: Store | None,
        explore: Explore | None,
    ) -> None:
        self._spec = spec
        self._built = built
        self._gpu = gpu
        self._store = store
        self._explore = explore if spec.is_open else None
        self.arguments = run_time_arguments(spec)
        self._kinds = "".join("P" if a.is_pointer else KINDS[a.dtype] for _, a in self.arguments)
        self._scopes_scratch = any(b.binary.scratch_bytes for b in built)
        self._lock = threading.RLock()
        self._devices: dict[int, Launcher] = {}
        self._scope: dict[str, Any] = {}
        self.form: bytes | None = None
        self.first_device: int | None = None
        self.entry = self._function(self._scope)
        vars(self.entry)[NATIVE] = NativeLaunch(form=self._native_form)

    def _function(self, scope: dict[str, Any]) -> Launcher:
        text = launcher_text(self._spec, self.arguments, compiler_scratch=self._scopes_scratch)
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
        chosen = self._recalled(device, loaded, args)
        if chosen is None and self._gpu.capturing() and (len(loaded) > 1 or self._explore is not None):
            # launches that are recorded cannot be timed: the best guess then, without settling for it
            return self._bind({}, device, loaded[0])
        if chosen is None and self._explore is not None:
            chosen = self._searched(self._explore, device, loaded, args)
        if chosen is None:
            chosen = self._chosen(device, loaded, args)
        first = not self._devices
        launcher = self._bind(self._scope if first else {}, device, chosen)
        if first and chosen.kernel.entry is not None:
            constants = constants_of(chosen.config)
            self.form = gpu_form(self._spec, self.arguments, constants, chosen.kernel.entry)
        if first:
            self.first_device = device
        self._devices[device] = launcher
        return launcher

    def form_on(self, device: int, *, guess: bool = False) -> bytes | None:
        """How it is launched on `device`, if that is the first it is used on. With `guess`, in its best guess if no call has settled it yet."""
        with self._gpu.guard(device), self._lock:
            if device not in self._devices and self._explore is None and len(self._built) == 1:
                self._prepare(device, ())
            if self.first_device is None and guess:
                one = self._load(device)[0]
                entry = one.kernel.entry
                return (
                    None
                    if entry is None
                    else gpu_form(self._spec, self.arguments, constants_of(one.config), entry)
                )
        return self.form if self.first_device == device else None

    def _load(self, device: int) -> list[_Loaded]:
        """The candidates that the device takes; one that needs more shared memory than there is drops out."""
        loaded = []
        refusals: list[KernelLaunchError] = []
        for candidate in self._built:
            try:
                kernel = self._gpu.load(candidate.binary, device, self._kinds)
            except KernelLaunchError as error:
                refusals.append(error)
            else:
                loaded.append(_Loaded(config=candidate.config, binary=candidate.binary, kernel=kernel))
        if not loaded:
            raise refusals[0]
        return loaded

    def _recalled(self, device: int, loaded: Sequence[_Loaded], args: Sequence[Any]) -> _Loaded | None:
        """What a search found earlier for such sizes on such a device, if it is loaded."""
        if self._explore is None and len(loaded) == 1:
            return loaded[0]
        known = recall(self._store, self._spec, self._gpu.name(device))
        found = known.get(tuple(magnitudes(_sizes(args))))
        if found is None:
            return None
        return next((one for one in loaded if identity(one.config) == identity(found)), None)

    def _chosen(self, device: int, loaded: Sequence[_Loaded], args: Sequence[Any]) -> _Loaded:
        """The fastest of `loaded`, but for those that spill where others do not."""
        worth = [loaded[index] for index in without_spills([one.kernel.spill_bytes for one in loaded])]
        if len(worth) == 1:
            return worth[0]
        index = choose(
            [self._bind({}, device, one) for one in worth],
            args,
            self._roles(),
            measure=self._gpu.measure,
            store=self._store,
            key=tuning_key([one.binary for one in worth], self._gpu.name(device), _sizes(args)),
            mappings=[mapping_text(self._spec, one.config) for one in worth],
        )
        return worth[index]

    def _searched(
        self, explore: Explore, device: int, loaded: Sequence[_Loaded], args: Sequence[Any]
    ) -> _Loaded | None:
        """The best configuration around `loaded`, which is remembered; None if nothing could be timed.

        Nor is there a search where memory does not hold a copy of what the kernel updates.
        """
        try:
            expendable = expendable_arguments(args, self._roles())
        except torch.OutOfMemoryError:
            return None
        shelf: dict[Any, _Loaded] = {}

        def ready(one: _Loaded) -> Ready:
            shelf[identity(one.config)] = one
            return Ready(
                config=one.config,
                call=partial(self._bind({}, device, one), *expendable),
                threads=one.binary.threads,
                registers=one.kernel.registers,
                spill_bytes=one.kernel.spill_bytes,
            )

        def load(config: Config, binary: GpuBinary) -> Ready:
            if binary.scratch_bytes and not self._scopes_scratch:
                raise KernelLaunchError(
                    "compiler-scratch", "it wants memory of the compiler's, which its candidates do not"
                )
            kernel = self._gpu.load(binary, device, self._kinds)
            return ready(_Loaded(config=config, binary=binary, kernel=kernel))

        found = search(
            self._spec.name,
            [ready(one) for one in loaded],
            Space.of(self._spec),
            Workshop(compile=explore.compile, load=load),
            limits=explore.search,
            measure=self._gpu.measure_cold,
        )
        if found is None:
            return None
        remember(self._store, self._spec, self._gpu.name(device), _sizes(args), found)
        return shelf[identity(found.best.config)]

    def _native_form(self) -> bytes | None:
        """How the chosen configuration is launched on the first device; `None` before the first call."""
        return self.form

    def _roles(self) -> list[str]:
        return [a.role for _, a in self.arguments if a.role in ("in", "out", "inout")]

    def _bind(self, scope: dict[str, Any], device: int, one: _Loaded) -> Launcher:
        launcher = scope["launch"] if scope else self._function(scope)
        scope |= constants_of(one.config)
        scope |= {"run": one.kernel.launch, "scratch_bytes": one.binary.scratch_bytes}
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


def _sizes(args: Sequence[Any]) -> list[int]:
    return [arg for arg in args if isinstance(arg, int)]
