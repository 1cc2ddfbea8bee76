"""Choose what runs a program: the native executor, or the interpreter in Python, which does the same."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from coilwork_cache import Store
from coilwork_runtime.builder import Builder
from coilwork_runtime.errors import ExecutorUnavailableError
from coilwork_runtime.executor.interpreter import load_interpreted
from coilwork_runtime.executor.lifetime_checker import LifetimeChecker
from coilwork_runtime.executor.native_program import NativeProgram, load_native
from coilwork_runtime.executor.region_replay import find_regions
from coilwork_runtime.executor.vendor_libraries import ConvolutionLibrary, DriverGraphs, ProductLibrary
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.module_loader import load_kernels
from coilwork_runtime.tensor_kinds import PLAIN, Call, TensorKinds, guard_call, refuse_operators

Executor = Literal["auto", "native", "python"]
Products = Literal["auto", "aten", "cublaslt"]
Convolutions = Literal["auto", "aten", "cudnn"]
log = logging.getLogger("coilwork.runtime")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """Options of how a program runs. None of them changes what is compiled.

    Attributes:
        executor: `native`, `python`, or `auto`, which is native where that loads. Default: `auto`.
        strict: raise where the native executor does not load, instead of interpreting
            in Python.
        check_lifetimes: the native executor verifies each allocation and free.
        products: who computes matrix products on GPUs; `auto` may choose another library than ATen where
            results may differ in their last bits.
        convolutions: the same of convolutions.
        rounds_freely: results may differ from eager's in their last bits.
        replay: stretches of launches that repeat go to the driver as one graph, or to a back end's device
            that captures.
        graph_devices: types of devices whose driver takes graphs. Default: `cuda`.
        library_devices: types of devices that the libraries called here compute on. Default: `cuda`.
        may_build: build the native executor where neither a wheel nor the store has it.
    """

    executor: Executor = "auto"
    strict: bool = False
    check_lifetimes: bool = False
    products: Products = "auto"
    convolutions: Convolutions = "auto"
    rounds_freely: bool = True
    replay: bool = True
    graph_devices: tuple[str, ...] = ("cuda",)
    library_devices: tuple[str, ...] = ("cuda",)
    may_build: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """A callable, and who is behind it.

    Attributes:
        call: takes one list, which it empties.
        executor: `native` or `python`; what a wrapper other than `python` is called otherwise.
        reason: why it is not the native executor; empty if it is, or if nobody asked for it.
        python_calls: operators that the native executor calls through Python, with the reason for each.
        direct: does what `call` does with the inputs one by one, if there is such a callable that leaves
            nothing to others.
    """

    call: Call
    direct: Callable[..., Sequence[Any]] | None = None
    executor: str
    reason: str = ""
    python_calls: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loadable:
    """A compiled graph as it lies in the cache.

    Attributes:
        name: of the graph.
        module: text of the Python module, which people read.
        kernels: their manifests and texts, as bytes.
        program: the program as bytes.
        refusal: why the native executor refuses it, if it does.
        text: the program's canonical text, for wrappers that restore programs by it; else empty.
        constants: tensors by key.
        devices: where its tensors are.
        operators: the graph's own operators, for calls that kernels are not for; without them these are
            refused.
        kinds: of tensors that it takes.
        is_stored: it comes from a store, where it may have been damaged.
    """

    name: str
    module: str
    kernels: bytes
    program: bytes
    refusal: str
    constants: Mapping[str, torch.Tensor]
    devices: Iterable[str]
    text: str = ""
    operators: Call | None = None
    kinds: TensorKinds = PLAIN
    is_stored: bool = False


def load(
    graph: Loadable,
    *,
    options: ExecutorOptions,
    builder: Builder,
    store: Store | None,
    warn: Callable[[str, str, str], None],
) -> Driven:
    """Build the kernels of `graph`, and load it for the executor that `options` ask for.

    `store` keeps the executor itself. `warn` hears of a graph that Python drives instead of what was asked
    for, and why.

    Raises:
        ProgramBytesError: the kernels or the program are damaged.
        KernelBuildError: a kernel does not build.
        ExecutorUnavailableError: the native executor is wanted and not to be had, and `strict` is on.
    """
    launchers = builder.build(load_kernels(graph.kernels))
    return drive(graph, launchers=launchers, options=options, store=store, warn=warn)


def drive(
    graph: Loadable,
    *,
    launchers: Mapping[str, Launcher],
    options: ExecutorOptions,
    store: Store | None,
    warn: Callable[[str, str, str], None],
) -> Driven:
    """Do as `load`, with a launcher for each kernel of `graph` by name.

    Raises:
        ProgramBytesError: the program is damaged.
        KeyError: a launcher or a constant is missing.
        ExecutorUnavailableError: as `load`.
    """
    wanted = options.executor

    regions = find_regions(launchers) if options.replay else None

    def load_in_python() -> Call:
        return load_interpreted(
            graph.program, launchers=launchers, constants=graph.constants, regions=regions
        )

    reason, is_faulty = "" if wanted == "python" else graph.refusal, False
    if not reason and wanted != "python":
        try:
            program = load_native(
                graph.program,
                launchers=launchers,
                constants=graph.constants,
                fallback=load_in_python,
                operators=graph.operators,
                kinds=graph.kinds,
                store=store,
                watch=LifetimeChecker() if options.check_lifetimes else None,
                products=_products(graph, options),
                convolutions=_convolutions(graph, options),
                graphs=_graphs(graph, options),
                regions=regions,
                may_build=options.may_build,
            )
            return _native(program)
        except ExecutorUnavailableError as error:
            if options.strict and wanted == "native":
                raise
            reason = str(error)
        # Python drives every program: a fault of the executor's costs no call. What was stored may be damaged
        # instead.
        except Exception as error:
            if options.strict or graph.is_stored:
                raise
            reason = f"{type(error).__name__}: {error}"
            is_faulty = True
    if wanted == "native" or options.check_lifetimes or is_faulty:
        warn(graph.name, "the native executor", reason or "as was asked for")
    elif reason:
        log.debug("graph %s is driven by Python: %s", graph.name, reason)
    call = guard_call(load_in_python(), graph.operators or refuse_operators, graph.kinds)
    return Driven(call=call, executor="python", reason=reason, python_calls={})


def _native(program: NativeProgram) -> Driven:
    calls = {plan.target: plan.reason for plan in program.python_calls}
    # operators of libraries are looked after by AOTAutograd when they are first called
    direct = None if calls else program.direct
    return Driven(call=program.call, direct=direct, executor="native", python_calls=calls)


def _products(graph: Loadable, options: ExecutorOptions) -> ProductLibrary | None:
    """Return the library that computes matrix products instead of ATen."""
    if not _uses_library(graph, options, options.products):
        return None
    return ProductLibrary(required=options.products == "cublaslt")


def _convolutions(graph: Loadable, options: ExecutorOptions) -> ConvolutionLibrary | None:
    """Return the library that computes convolutions instead of ATen."""
    if not _uses_library(graph, options, options.convolutions):
        return None
    return ConvolutionLibrary(required=options.convolutions == "cudnn")


def _graphs(graph: Loadable, options: ExecutorOptions) -> DriverGraphs | None:
    """Return the source of driver graphs, for work that is the same in call after call."""
    return DriverGraphs() if options.replay and _is_on(graph, options.graph_devices) else None


def _is_on(graph: Loadable, types: tuple[str, ...]) -> bool:
    return any(device.partition(":")[0] in types for device in graph.devices)


def _uses_library(graph: Loadable, options: ExecutorOptions, wanted: str) -> bool:
    """Return True if a library is called directly. Where results should be eager's to the last bit, or the
    same whatever is beside them, that is only if it is asked for.
    """
    return (
        _is_on(graph, options.library_devices)
        and wanted != "aten"
        and (wanted != "auto" or options.rounds_freely)
    )
