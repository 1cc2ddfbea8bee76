"""Load a program's bytes for the native executor: its callable, and the plans of its calls."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_cache import Store
from coilwork_runtime.errors import (
    ExecutorUnavailableError,
    ProgramBytesError,
    RuntimeFault,
    ScratchFolderError,
)
from coilwork_runtime.executor import slow_path
from coilwork_runtime.executor.call_plans import CallPlan, Route, plan_call
from coilwork_runtime.executor.profiler import Stopwatch
from coilwork_runtime.executor.program_reader import check_replacements, read_program, read_tables
from coilwork_runtime.executor.region_replay import RegionReplay, wrap_launchers
from coilwork_runtime.executor.vendor_libraries import (
    CalledLibrary,
    ConvolutionLibrary,
    DriverGraphs,
    ProductLibrary,
)
from coilwork_runtime.extensions import load_own_extension
from coilwork_runtime.folders import make_scratch_folder
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.native_build import EXECUTOR
from coilwork_runtime.tensor_kinds import (
    MARKS,
    ON_CPU,
    ON_META,
    PLAIN,
    TensorKinds,
    check_memory_first,
    refuse_operators,
)
from coilwork_runtime.torch_compat import (
    are_operators_watched,
    handles_of,
    make_kind_samples,
    make_tensor_samples,
    tensors_of,
)

Call = Callable[[list[Any]], Sequence[Any]]
Watch = Callable[[str, str, int, str, torch.Tensor | None, str], None]

FOLDER: Final = Path(__file__).parent / "native"

log = logging.getLogger("coilwork.runtime")


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeProgram:
    """A program that the native executor runs.

    Attributes:
        call: the boxed callable: takes one list, which it empties, and returns a list.
        direct: the same, called with the inputs one by one.
        plans: how each call of an operator is made.
        counters: how often it was called, and how often a call, a launch or a rare case went through Python:
            `calls`, `python_calls`, `python_launches`, `slow_paths`, `fallbacks`; and matrix products that
            cuBLASLt did, and those
            that it was asked for and ATen did: `products`, `refused_products`; the same of cuDNN:
                `convolutions`,
            `refused_convolutions`; and launches of graphs, and what was in them: `graphs`, `work_in_graphs`.
        stopwatch: measures what instructions take, by kind, while it is entered.
    """

    call: Call
    direct: Callable[..., Sequence[Any]]
    plans: tuple[CallPlan, ...]
    counters: Callable[[], Mapping[str, int]]
    stopwatch: Stopwatch

    @property
    def python_calls(self) -> tuple[CallPlan, ...]:
        """The calls that are made in Python."""
        return tuple(plan for plan in self.plans if plan.route is Route.PYTHON)


def load_native(
    data: bytes,
    *,
    launchers: Mapping[str, Callable[..., Any]],
    constants: Mapping[str, torch.Tensor],
    fallback: Callable[[], Call],
    operators: Call | None = None,
    kinds: TensorKinds = PLAIN,
    store: Store | None = None,
    watch: Watch | None = None,
    products: ProductLibrary | None = None,
    convolutions: ConvolutionLibrary | None = None,
    graphs: DriverGraphs | None = None,
    may_build: bool = True,
    replacements: Mapping[str, Call] = MappingProxyType({}),
    regions: RegionReplay | None = None,
) -> NativeProgram:
    """Return the program in `data`, as `coilwork_wrapper.native` writes it.

    `launchers` has one for each kernel by name, `constants` the tensors by key. `fallback` makes a callable
    that takes over calls with numbers that are no plain integers. `operators` takes over those with tensors
    that are not of `kinds`, fake ones for instance, or while a dispatch mode watches operators; without it
    tensors are refused, and a user's mode sees what a program calls. `store` keeps the extension.
    `watch(event, program, instruction, name, tensor, place)` is told of each allocation, view, result and
    free, at a price. `products` does matrix products that fit it, `convolutions` convolutions; ATen does the
    others. With `graphs`, work that is the same in call after call is given to the driver as graphs. Without
    `may_build`, the extension is one that is at hand: of the wheel, the store, or this process.
    `replacements` run in place of subprograms, and launches in capture regions go to `regions`, as
    `load_interpreted` says.

    Raises:
        ExecutorUnavailableError: the extension can neither be loaded nor built here, or a library is required
            and not to be had.
        ProgramBytesError: the bytes are damaged.
        KeyError: a kernel or constant is missing.
        ValueError: a replacement is for no part of the program.
    """
    if replacements:
        check_replacements(replacements, read_program(data)[1])
    extension = find_executor_extension(store, may_build=may_build)
    tables = read_tables(data)
    product_library, convolution_library = (
        _open_library(products, extension),
        _open_library(convolutions, extension),
    )
    plans = tuple(
        plan_call(
            call,
            extension,
            products if product_library else None,
            convolutions if convolution_library else None,
        )
        for call in tables.calls
    )
    asked = {plan.library for plan in plans}
    bound = wrap_launchers(launchers, regions)
    kernels = tuple(_kernel(bound[name]) for name in tables.kernels)
    try:
        call: Any = extension.Program(
            data,
            tuple((plan.data, plan.callback) for plan in plans),
            kernels,
            [constants[key] for key in tables.keys],
            handles_of,
            tensors_of,
            slow_path,
            _defer_making(fallback),
            check_memory_first(operators or refuse_operators, kinds),
            (
                *kinds.keys,
                # what nobody else can serve is refused by the check of an input, which knows its name
                ON_META if operators is None else 0,
                kinds.resized or any("resize_storage_bytes_" in call.target for call in tables.calls),
                operators is None,
            ),
            watch,
            product_library if "cuBLASLt" in asked else 0,
            None if products is None else products.settings,
            convolution_library if "cuDNN" in asked else 0,
            None if convolutions is None else convolutions.settings,
            0 if graphs is None else graphs.open(extension),
            dict(replacements) or None,
            regions,
        )
    except ValueError as error:
        raise ProgramBytesError("damaged-program", "a program cannot be loaded", reason=str(error)) from error
    return NativeProgram(
        call=call, direct=call, plans=plans, counters=call.counters, stopwatch=Stopwatch(call, plans)
    )


def _open_library(library: CalledLibrary | None, extension: Any) -> int:
    """Return the address of the opened library; 0 if there is none to open, or it is not to be had and
    not required.
    """
    if library is None:
        return 0
    try:
        return library.open(extension)
    except ImportError as error:
        if not library.required:
            log.debug("%s are left to ATen: %s", library.WORK, error)
            return 0
        raise ExecutorUnavailableError(
            f"no-{library.WORK}",
            f"{library.NAME} cannot be loaded",
            reason=str(error),
            remedy=f"use the option {library.WORK}='aten'",
        ) from error


def find_executor_extension(store: Store | None, *, may_build: bool = True) -> Any:
    """Return the extension module, built here if it is not at hand and `may_build`.

    Raises:
        ExecutorUnavailableError: there is neither a stored one nor what it takes to build it.
    """
    if sys.platform != "linux":
        raise ExecutorUnavailableError(
            "other-system", f"the native executor runs on Linux, not {sys.platform}"
        )
    try:
        extension = load_own_extension(EXECUTOR, store, may_build=may_build)
    except ImportError as error:
        raise ExecutorUnavailableError(
            "executor-import", "the native executor does not load", reason=str(error)
        ) from error
    if extension is None and not may_build:
        raise ExecutorUnavailableError(
            "executor-absent",
            "the native executor is not at hand",
            reason="building it takes longer than most loads, and nothing would keep it",
            remedy="give a store, or install a wheel that brings the executor",
        )
    if extension is None:
        raise ExecutorUnavailableError(
            "executor-build",
            "the native executor cannot be built here",
            reason="it takes a C++ compiler and Python's headers",
            remedy="install g++ and python3-dev, or use the option executor='python'",
        )
    extension.learn(make_tensor_samples())
    facts = (are_operators_watched, PLAIN.keys, ON_CPU, MARKS)
    if not extension.learn_kinds([], *facts) and not extension.learn_kinds(make_kind_samples(), *facts):
        raise ExecutorUnavailableError(
            "other-tensors",
            "the native executor cannot tell what tensors of this torch are",
            remedy="use the option executor='python'",
        )
    # where no files can be written, there are none to remove
    with contextlib.suppress(ScratchFolderError):
        extension.remove_when_ended(os.fsencode(make_scratch_folder()))
    return extension


def warm_executor(store: Store | None) -> None:
    """Start loading the extension, and building it if need be, beside what the caller does; who needs it
    waits for it.

    Whatever stands in the way is for `load_native` to report.
    """
    if EXECUTOR not in sys.modules:
        loading = threading.Thread(target=_load_quietly, args=(store,), name="coilwork-executor", daemon=True)
        # the interpreter may be shutting down, and then whoever needs it loads it
        with contextlib.suppress(RuntimeError):
            loading.start()


def _load_quietly(store: Store | None) -> None:
    with contextlib.suppress(RuntimeFault):
        find_executor_extension(store)


def _kernel(
    launcher: Callable[..., Any],
) -> tuple[Callable[..., Any], bytes | None, Callable[[], Any] | None]:
    """Return the launcher, how to do without it, and what to ask for that later."""
    if not isinstance(launcher, Launcher) or launcher.descriptor is None:
        return launcher, None, None
    data = launcher.descriptor()
    return launcher, data, launcher.descriptor if data is None else None


def _defer_making(make: Callable[[], Call]) -> Call:
    @functools.cache
    def make_once() -> Call:
        return make()

    return lambda args: make_once()(args)
