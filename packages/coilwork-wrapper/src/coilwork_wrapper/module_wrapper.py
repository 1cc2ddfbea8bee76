"""The wrappers `python` and `native`, and the callable of a program by any wrapper. Needs
`coilwork-wrapper[runtime]`.

Both wrappers make the same: bytes that run, and a Python module for people. With `python` the option
`executor` says whether the native executor or Python runs the bytes; with `native` it is the native executor
where that loads.

Python drives every program. So a program that another wrapper cannot drive costs a warning and no call to the
operator fallback, unless a kernel is at fault, which no other driver helps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from coilwork_ir.errors import EmitError, ParseError
from coilwork_ir.kernel_source import KernelSource, write_kernels
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.text import format_program, parse_program
from coilwork_ir.program.walk import index_buffers, list_kernels, walk
from coilwork_ir.wrapper import Artifact, Launcher, RestoringWrapper, WrapOptions, Wrapper
from coilwork_runtime import (
    Builder,
    KernelBuildError,
    MissingCompilerError,
    ProgramBytesError,
    generated,
    guard_call,
)
from coilwork_runtime.executor.choice import Driven, Executor, ExecutorOptions, Loadable, load
from coilwork_runtime.module_loader import load_kernels
from coilwork_runtime.saved_program import SavedProgram, write_program
from coilwork_runtime.tensor_kinds import TensorKinds, refuse_operators
from coilwork_wrapper.native.emit import emit_native, encode_program
from coilwork_wrapper.python.module import emit_python
from coilwork_wrapper.python.operator_libraries import find_libraries


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleOptions(WrapOptions):
    """The options of these two wrappers: the parts that a compilation has ready.

    Attributes:
        graph: the module, the bytes and the kernels' manifests, written already.
        builder: builds and keeps kernels.
        settings: who runs programs.
        executors: the store that keeps the executor itself between processes.
        warn: hears of a graph that Python drives instead of what was asked for, and why.
    """

    graph: Loadable
    builder: Builder
    settings: ExecutorOptions
    executors: Any
    warn: Callable[[str, str, object], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleArtifact:
    """A loaded module or program; `driven` says who is behind it, `rounds_freely` if its results may differ
    from eager's in their last bits.
    """

    driven: Driven
    graph: Loadable
    builder: Builder
    rounds_freely: bool

    def __call__(self, args: list[Any], /) -> Sequence[Any]:
        return self.driven.call(args)

    def save(self, folder: Path, /) -> None:
        """Write the program as files, of which `coilwork_aot.save_program` makes a package, and the module
        for people."""
        graph = self.graph
        saved = SavedProgram(
            name=graph.name,
            program=graph.program,
            kernels=graph.kernels,
            constants=graph.constants,
            refusal=graph.refusal,
            rounds_freely=self.rounds_freely,
        )
        write_program(folder, saved, module=graph.module)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleWrapper:
    """Programs as Python modules and bytes.

    Attributes:
        name: the value of the option `wrapper`.
        executor: who runs them; None leaves it to the option `executor`.
    """

    name: str
    executor: Executor | None = None

    def refuses(self, program: Program) -> str:
        """Return why there is no module of `program`, or no bytes where only these are wanted."""
        try:
            if self.executor == "native":
                emit_native(program)
            else:
                emit_python(
                    program, {kernel.name: _stand_in(kernel.name) for kernel in list_kernels(program)}
                )
        except EmitError as error:
            return str(error)
        return ""

    def emit(
        self, program: Program, sources: Mapping[str, KernelSource], options: WrapOptions
    ) -> ModuleArtifact:
        """Return the program with its kernels built, driven as the options say, or by Python where that
        cannot be.
        """
        if isinstance(options, ModuleOptions):
            graph, builder, settings = options.graph, options.builder, options.settings
            store, warn = options.executors, options.warn
        else:
            graph = write_graph(program, sources, target=options.target, constants=options.constants)
            options.write("module.py", graph.module)
            builder = Builder(workers=options.workers)
            store, warn = None, _warn
            settings = ExecutorOptions(executor=self.executor or "python", strict=True)
        driven = load(graph, options=settings, builder=builder, store=store, warn=warn)
        return ModuleArtifact(
            driven=driven, graph=graph, builder=builder, rounds_freely=settings.rounds_freely
        )


PYTHON: Final = ModuleWrapper(name="python")
NATIVE: Final = ModuleWrapper(name="native", executor="native")


def choose_executor(wrapper: Wrapper, executor: Executor) -> Executor | None:
    """Return the executor of `wrapper`'s programs if a caller asks for `executor`; None if it has none."""
    return (wrapper.executor or executor) if isinstance(wrapper, ModuleWrapper) else None


def can_restore(wrapper: Wrapper) -> bool:
    """Return True if `load_stored` loads the programs of `wrapper`."""
    return isinstance(wrapper, ModuleWrapper | RestoringWrapper)


def write_text(wrapper: Wrapper, program: Program) -> str:
    """Return the text by which `load_stored` loads `program`; empty if its bytes do."""
    return format_program(program) if isinstance(wrapper, RestoringWrapper) else ""


def _warn(graph: str, wanted: str, reason: object) -> None:
    warnings.warn(f"graph {graph} is driven by Python instead of {wanted}: {reason}", stacklevel=3)


def write_graph(
    program: Program,
    sources: Mapping[str, KernelSource],
    *,
    target: str,
    constants: Mapping[str, Any],
    on_fault: Callable[[Exception], None] | None = None,
) -> Loadable:
    """Return the bytes of `program`, the kernels' manifests and the module for people, as an executor loads
    them.

    `on_fault` hears of a fault of the module, by which nothing runs; without it, that is raised.
    """
    encoded = encode_program(program)
    devices = {buffer.device for part in walk(program) for buffer in index_buffers(part).values()}
    return Loadable(
        name=program.name,
        module=_write_module(program, sources, target, on_fault),
        kernels=write_kernels((sources[kernel.name], kernel.origins) for kernel in list_kernels(program)),
        program=encoded.data,
        refusal="" if encoded.refusal is None else str(encoded.refusal),
        constants=constants,
        devices=sorted(devices),
    )


def _write_module(
    program: Program,
    sources: Mapping[str, KernelSource],
    target: str,
    on_fault: Callable[[Exception], None] | None,
) -> str:
    try:
        return emit_python(program, sources, target=target, libraries=find_libraries(program))
    # nothing runs by it, so no call has to run otherwise because of this
    except Exception as error:
        if on_fault is None:
            raise
        on_fault(error)
        return f"# Graph {program.name} could not be written as a module: {type(error).__name__}.\n"


def _stand_in(name: str) -> KernelSource:
    """A kernel before it has a text."""
    return KernelSource(name=name, language="cpp", text="", entry=name, args=())


# ---- drive a program ----


def drive_program(
    wrapper: Wrapper, program: Program, sources: Mapping[str, KernelSource], options: ModuleOptions
) -> Driven:
    """Build the kernels of `program`, and return what calls them by the boxed convention: one list of inputs,
    which is emptied.

    Raises:
        KernelBuildError: a kernel does not build.
        EmitError: the wrapper refuses this program, and `options.settings.strict` is on.
    """
    kernels = _Kernels(options.builder, options.graph)
    options = replace(options, build=kernels.build)
    if not isinstance(wrapper, ModuleWrapper):
        artifact = _try_wrapper(wrapper, program, sources, options, kernels)
        if artifact is not None:
            return _guard(wrapper.name, artifact, options.graph, options.executors)
        wrapper = PYTHON
    return wrapper.emit(program, sources, options).driven


def load_stored(
    wrapper: Wrapper,
    graph: Loadable,
    *,
    options: ExecutorOptions,
    builder: Builder,
    store: Any,
    warn: Callable[[str, str, object], None],
    emitter: Any = None,
) -> Driven:
    """Build the kernels of a stored `graph`, and return what calls them, as `drive_program` does.

    Raises:
        ProgramBytesError: the kernels or the program are damaged.
        KernelBuildError: a kernel does not build.
        ExecutorUnavailableError: as `coilwork_runtime.executor.choice.load`.
    """
    if not isinstance(wrapper, RestoringWrapper):
        return load(graph, options=options, builder=builder, store=store, warn=warn)
    try:
        program = parse_program(graph.text)
    except ParseError as error:
        raise ProgramBytesError(
            "damaged-program",
            "the text of a program cannot be read",
            reason=str(error),
            remedy="clear the cache that it came from, or compile again",
        ) from error
    kernels = _Kernels(builder, graph)
    services = WrapOptions(
        constants=graph.constants, build=kernels.build, runtime=generated, store=store, emitter=emitter
    )
    try:
        artifact = wrapper.restore(program, graph.kernels, services)
    except Exception as error:
        if options.strict or error is kernels.fault:
            raise
        warn(graph.name, f"wrapper={wrapper.name!r}", error)
        return load(graph, options=options, builder=builder, store=store, warn=warn)
    return _guard(wrapper.name, artifact, graph, store)


@runtime_checkable
class NativeArtifact(Protocol):
    """An artefact that may be called without Python in the way."""

    @property
    def is_complete(self) -> bool:
        """True if it leaves nothing to others: AOTAutograd need not be around its calls."""
        ...

    def open_native(
        self, instead: Callable[[list[Any]], Sequence[Any]], kinds: TensorKinds, store: Any
    ) -> Callable[..., Sequence[Any]] | None:
        """Return the call, over one list or over the inputs one by one, which leaves what is rare to
        `instead`.

        `store` may have the native executor; None where nobody has it.
        """
        ...


def _guard(name: str, artifact: Artifact, graph: Loadable, store: Any) -> Driven:
    call = guard_call(artifact, graph.operators or refuse_operators, graph.kinds)
    if isinstance(artifact, NativeArtifact):
        native = artifact.open_native(call, graph.kinds, store)
        if native is not None:
            direct = native if artifact.is_complete else None
            return Driven(call=native, direct=direct, executor=name, python_calls={})
    return Driven(call=call, executor=name, python_calls={})


@dataclass(slots=True)
class _Kernels:
    """The kernels of a graph, built when a wrapper asks; `fault` is what a failed build raised."""

    builder: Builder
    graph: Loadable
    fault: Exception | None = field(init=False, default=None)

    def build(self) -> Mapping[str, Launcher]:
        try:
            return self.builder.build(load_kernels(self.graph.kernels))
        except Exception as error:
            self.fault = error
            raise


def _try_wrapper(
    wrapper: Wrapper,
    program: Program,
    sources: Mapping[str, KernelSource],
    options: ModuleOptions,
    kernels: _Kernels,
) -> Artifact | None:
    """Return the artefact of `wrapper`; None, with a warning, if it fails and `strict` is off."""
    try:
        refused = wrapper.refuses(program)
        if refused:
            raise EmitError("wrapper-refuses", f"program @{program.name}: {refused}")
        return wrapper.emit(program, sources, options)
    # A fault of another driver than Python costs no call. One of a kernel is not the driver's.
    except Exception as error:
        names = {kernel.name for kernel in list_kernels(program)}
        of_kernel = error is kernels.fault or (isinstance(error, KernelBuildError) and error.kernel in names)
        if options.settings.strict or of_kernel or isinstance(error, MissingCompilerError):
            raise
        options.warn(options.graph.name, f"wrapper={wrapper.name!r}", error)
        return None
