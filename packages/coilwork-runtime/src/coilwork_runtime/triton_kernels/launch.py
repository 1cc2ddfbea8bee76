"""Launch a compiled Triton kernel: on the device of its arguments, in its configuration, with its grid."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import torch

from coilwork_cache import Store
from coilwork_runtime.dtypes import get_torch_dtype
from coilwork_runtime.errors import DeviceError, KernelBuildError, KernelLaunchError
from coilwork_runtime.launch_descriptor import Launcher, encode_descriptor, encode_gpu_binding
from coilwork_runtime.layout_checks import empty_strided_cuda
from coilwork_runtime.manifest.kernel_manifest import KernelArgument, KernelSpec
from coilwork_runtime.manifest.size_bytecode import make_constant_code
from coilwork_runtime.triton_kernels.autotune.candidate_selection import (
    drop_spilling,
    make_expendable_arguments,
    make_selection_key,
    select_candidate,
)
from coilwork_runtime.triton_kernels.autotune.coordinate_descent import Config, Space, make_config_key
from coilwork_runtime.triton_kernels.autotune.records import list_magnitudes, recall, remember
from coilwork_runtime.triton_kernels.autotune.search import Ready, Search, Workshop, search
from coilwork_runtime.triton_kernels.compilation import GpuBinary
from coilwork_runtime.triton_kernels.gpu import Gpu, LoadedKernel
from coilwork_runtime.triton_kernels.versions import format_mapping, get_version, select_version

_Call = Callable[..., None]
_T = TypeVar("_T")

KINDS: Final[Mapping[str, str]] = {"i32": "i", "i64": "l"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A candidate that compiled."""

    config: Mapping[str, int]
    binary: GpuBinary


@dataclass(frozen=True, slots=True, kw_only=True)
class Explore:
    """A search beyond the candidates: how far it may go, and what builds other configurations, several at
    once.
    """

    search: Search
    compile: Callable[[Sequence[Config]], Sequence[GpuBinary | KernelBuildError]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """A configuration on a device."""

    config: Config
    binary: GpuBinary
    kernel: LoadedKernel


def make_launcher(
    spec: KernelSpec,
    built: Sequence[Built],
    gpu: Gpu,
    *,
    store: Store | None,
    explore: Explore | None = None,
) -> Launcher:
    """Return a callable over tensors, then sizes. Its first call on a device loads the kernel and settles the
    configuration.

    What a search once found for such sizes is taken if it is among `built`. Else, with `explore`, there is a
    search.
    """
    if len(spec.guards) == 1:
        return _Kernel(spec, tuple(built), gpu, store, explore).launcher
    last = len(spec.guards) - 1
    versions: list[_Kernel] = []
    for number in range(last, -1, -1):
        own = tuple(one for one in built if get_version(spec, one.config) == number)
        # in place of one that does not compile there is that for all sizes
        if own or number == last:
            search = None if number else explore
            versions.append(_Kernel(select_version(spec, number), own, gpu, store, search))
        else:
            versions.append(versions[0])
    versions.reverse()
    return _Versions(spec, versions).launcher


# How often calls that only other versions are for wait for one of the first version's, which times its
# candidates.
_PATIENCE: Final = 8


class _Versions:
    """A kernel in several versions, that for the fewest sizes first."""

    def __init__(self, spec: KernelSpec, versions: Sequence[_Kernel]) -> None:
        self._spec = spec
        self._asked = 0
        self._versions = versions
        self._sizes_of = _sizes_reader(spec)
        self._number = _keep_last(spec.first_version)
        self.launcher = Launcher(call=self._launch, descriptor=self._describe, binaries=self._list_binaries)

    def _list_binaries(self) -> list[tuple[Config, GpuBinary]]:
        return [(one.config, one.binary) for one in (kernel.get_preferred() for kernel in self._versions)]

    def _launch(self, *args: Any) -> None:
        self._versions[self._number(self._sizes_of(args))].launch(*args)

    def _describe(self) -> bytes | None:
        """Return the descriptor of all versions on the first device; `None` before one was launched, and for
        a while before the first one was settled.
        """
        device = next((k.first_device for k in self._versions if k.binding is not None), None)
        if device is None:
            return None
        self._asked += 1
        bindings = [kernel.bind_to_device(device, guess=self._asked > _PATIENCE) for kernel in self._versions]
        known = [binding for binding in bindings if binding is not None]
        return encode_descriptor(self._spec, known) if len(known) == len(bindings) else None


class _Kernel:
    """One kernel on all devices."""

    def __init__(
        self,
        spec: KernelSpec,
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
        self._kinds = "".join("P" if a.is_pointer else KINDS[a.dtype] for a in spec.args)
        self._has_compiler_scratch = any(one.binary.scratch_bytes for one in built)
        self._lock = threading.RLock()
        self._devices: dict[int, _Call] = {}
        self.binding: bytes | None = None
        self.first_device: int | None = None
        self._bound: _Call = self._first
        self._chosen: Built | None = None
        self.launcher = Launcher(call=self.launch, descriptor=self._describe, binaries=self._list_binaries)

    def get_preferred(self) -> Built:
        """Return the configuration that was chosen on the first device, else the best guess."""
        return self._chosen or self._built[0]

    def _list_binaries(self) -> list[tuple[Config, GpuBinary]]:
        preferred = self.get_preferred()
        return [(preferred.config, preferred.binary)]

    def launch(self, *args: Any) -> None:
        """Launch on the device of the first call, else through `_first`. Callers hold this method."""
        self._bound(*args)

    def _first(self, *args: Any) -> None:
        """A call that `launch` cannot make: the first on a device, or one while another is current."""
        device: int = args[0].get_device()
        if device < 0:
            raise DeviceError(
                "wrong-device",
                (
                    f"kernel {self._spec.name} was built for {self._spec.target or 'a GPU'} and called with "
                    "CPU tensors"
                ),
                remedy=(
                    "move the tensors to the GPU, or set TRITON_INTERPRET=1 before building to run it in "
                    "Triton's interpreter"
                ),
            )
        with self._gpu.guard(device):
            launcher = self._devices.get(device)
            if launcher is None:
                with self._lock:
                    launcher = self._devices.get(device) or self._prepare(device, args)
            launcher(*args)

    def _prepare(self, device: int, args: Sequence[Any]) -> _Call:
        """Load the candidates on the current device `device`, choose one, and make its launcher."""
        loaded = self._load(device)
        chosen = self._recall(device, loaded, args)
        if chosen is None and self._gpu.capturing() and (len(loaded) > 1 or self._explore is not None):
            # launches that are recorded cannot be timed: the best guess then, without settling for it
            return self._call_on(device, loaded[0])
        if chosen is None and self._explore is not None:
            chosen = self._search(self._explore, device, loaded, args)
        if chosen is None:
            chosen = self._select(device, loaded, args)
        call = self._call_on(device, chosen)
        if not self._devices:
            if chosen.kernel.entry is not None:
                self.binding = encode_gpu_binding(self._spec, chosen.config, chosen.kernel.entry)
            self._chosen = Built(config=chosen.config, binary=chosen.binary)
            self.first_device = device
            self._bound = call
        self._devices[device] = call
        return call

    def bind_to_device(self, device: int, *, guess: bool = False) -> bytes | None:
        """Return the binding for `device`, if that is the first it is used on. With `guess`, it is that of
        the best guess if no call has settled it yet.
        """
        with self._gpu.guard(device), self._lock:
            if device not in self._devices and self._explore is None and len(self._built) == 1:
                self._prepare(device, ())
            if self.first_device is None and guess:
                one = self._load(device)[0]
                return (
                    None
                    if one.kernel.entry is None
                    else encode_gpu_binding(self._spec, one.config, one.kernel.entry)
                )
        return self.binding if self.first_device == device else None

    def _load(self, device: int) -> list[_Loaded]:
        """Return the candidates that the device takes; one that needs more shared memory than there is drops
        out.
        """
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

    def _recall(self, device: int, loaded: Sequence[_Loaded], args: Sequence[Any]) -> _Loaded | None:
        """Return the configuration that a search found earlier for sizes and devices like these, if it is
        loaded.
        """
        if self._explore is None and len(loaded) == 1:
            return loaded[0]
        known = recall(self._store, self._spec, self._gpu.name(device))
        config = known.get(tuple(list_magnitudes(_sizes(args))))
        if config is None:
            return None
        return next((one for one in loaded if make_config_key(one.config) == make_config_key(config)), None)

    def _select(self, device: int, loaded: Sequence[_Loaded], args: Sequence[Any]) -> _Loaded:
        """Return the fastest of `loaded`, but for those that spill where others do not."""
        worth = [loaded[index] for index in drop_spilling([one.kernel.spill_bytes for one in loaded])]
        if len(worth) == 1:
            return worth[0]
        index = select_candidate(
            [self._call_on(device, one) for one in worth],
            args,
            self._roles(),
            measure=self._gpu.measure,
            store=self._store,
            key=make_selection_key([one.binary for one in worth], self._gpu.name(device), _sizes(args)),
            mappings=[format_mapping(self._spec, one.config) for one in worth],
        )
        return worth[index]

    def _search(
        self, explore: Explore, device: int, loaded: Sequence[_Loaded], args: Sequence[Any]
    ) -> _Loaded | None:
        """Return the best configuration around `loaded`, which is remembered; None if nothing could be timed.

        Nor is there a search where memory does not hold a copy of what the kernel updates.
        """
        try:
            expendable = make_expendable_arguments(args, self._roles())
        except torch.OutOfMemoryError:
            return None
        shelf: dict[Any, _Loaded] = {}

        def ready(one: _Loaded) -> Ready:
            shelf[make_config_key(one.config)] = one
            return Ready(
                config=one.config,
                call=partial(self._call_on(device, one), *expendable),
                threads=one.binary.threads,
                registers=one.kernel.registers,
                spill_bytes=one.kernel.spill_bytes,
            )

        def load(config: Config, binary: GpuBinary) -> Ready:
            if binary.scratch_bytes and not self._has_compiler_scratch:
                raise KernelLaunchError(
                    "compiler-scratch", "it wants memory of the compiler's, which its candidates do not"
                )
            kernel = self._gpu.load(binary, device, self._kinds)
            return ready(_Loaded(config=config, binary=binary, kernel=kernel))

        result = search(
            self._spec.name,
            [ready(one) for one in loaded],
            Space.from_spec(self._spec),
            Workshop(compile=explore.compile, load=load),
            limits=explore.search,
            measure=self._gpu.measure_cold,
        )
        if result is None:
            return None
        remember(self._store, self._spec, self._gpu.name(device), _sizes(args), result)
        return shelf[make_config_key(result.best.config)]

    def _describe(self) -> bytes | None:
        """Return the descriptor of the chosen configuration on the first device; `None` before the first
        call.
        """
        return None if self.binding is None else encode_descriptor(self._spec, [self.binding])

    def _roles(self) -> list[str]:
        return [a.role for a in self._spec.args if a.role in ("in", "out", "inout")]

    def _call_on(self, device: int, one: _Loaded) -> _Call:
        """Return a launch of `one`, for arguments on `device`; of others it asks `_first`."""
        spec, run, scratch_bytes = self._spec, one.kernel.launch, one.binary.scratch_bytes
        values = spec.values_of(one.config)
        sizes_of = _sizes_reader(spec)
        codes = [code.bind(values) for code in (*spec.grid, *[make_constant_code(1)] * (3 - len(spec.grid)))]
        grid_for = _keep_last(lambda sizes: tuple(code.evaluate(sizes) for code in codes))
        tensor = next(k for k, a in enumerate(_list_passed(spec)) if a.is_pointer)
        arguments_for = _scratch_adder(spec, values, device)
        first, current_device, raw_stream = self._first, self._gpu.current, self._gpu.stream

        def launch(*args: Any) -> None:
            if args[tensor].get_device() != device or current_device() != device:
                return first(*args)
            sizes = sizes_of(args)
            x, y, z = grid_for(sizes)
            own = _empty(x * y * z * scratch_bytes, "u8", device) if scratch_bytes else 0
            passed = args if arguments_for is None else arguments_for(args, sizes)
            return run(x, y, z, raw_stream(device), own, *passed)

        return launch


def _list_passed(spec: KernelSpec) -> list[KernelArgument]:
    """Return the arguments that callers pass: all but scratch memory."""
    return [one for one in spec.args if one.role != "scratch"]


def _sizes_reader(spec: KernelSpec) -> Callable[[tuple[Any, ...]], tuple[int, ...]]:
    """A function from what a launcher is given to the sizes among it."""
    places = [k for k, one in enumerate(_list_passed(spec)) if one.role == "size"]
    if places == list(range(len(_list_passed(spec)) - len(places), len(_list_passed(spec)))):
        start = len(_list_passed(spec)) - len(places)
        return lambda args: args[start:]
    return lambda args: tuple(args[k] for k in places)


def _scratch_adder(
    spec: KernelSpec, parameters: Sequence[int], device: int
) -> Callable[[tuple[Any, ...], tuple[int, ...]], list[Any]] | None:
    """Return a function that puts scratch memory between what a launcher is given; None for kernels without
    any.
    """
    if all(one.elements is None for one in spec.args):
        return None

    def add(args: tuple[Any, ...], sizes: tuple[int, ...]) -> list[Any]:
        given = iter(args)
        return [
            next(given)
            if one.elements is None
            else _empty(one.elements.evaluate(sizes, parameters), one.dtype, device)
            for one in spec.args
        ]

    return add


def _keep_last(compute: Callable[[tuple[int, ...]], _T]) -> Callable[[tuple[int, ...]], _T]:
    """`compute`, which is not asked again for the sizes that it was asked for last."""
    last: tuple[tuple[int, ...], _T] | None = None

    def find(sizes: tuple[int, ...]) -> _T:
        nonlocal last
        # one reference, so that threads see a pair that belongs together
        known = last
        if known is None or known[0] != sizes:
            last = known = (sizes, compute(sizes))
        return known[1]

    return find


def _empty(elements: int, dtype: str, device: int) -> torch.Tensor:
    return empty_strided_cuda((elements,), (1,), get_torch_dtype(dtype), device)


def _sizes(args: Sequence[Any]) -> list[int]:
    return [arg for arg in args if isinstance(arg, int)]
