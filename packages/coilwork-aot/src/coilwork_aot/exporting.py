"""Export models: capture them by `torch.export`, have them compiled, and package what comes of it.

Needs `coilwork-aot[export]`. The compiler is handed in: `coilwork.export` is `export` with Coilwork's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.export import ExportedProgram

from coilwork_aot.archive import Archive, read_headers
from coilwork_aot.loading import Weights, load, load_archive
from coilwork_aot.manifest import Leaf, Size
from coilwork_aot.model import MAIN, LoadedModel
from coilwork_aot.packaging import (
    MACHINES,
    CompiledProgram,
    EntryProgram,
    Package,
    StateValue,
    make_package,
)
from coilwork_aot.torch_compat import list_leaves
from coilwork_aot.trees import Tree, encode_tree
from coilwork_aot.tuning import tune
from coilwork_aot.version import __version__
from coilwork_aot.wrapper import PACKAGE, keep_programs
from coilwork_cache import Store
from coilwork_frontend.calling_convention.convention import Roles
from coilwork_frontend.errors import CoilworkError, ExportError, describe
from coilwork_frontend.exported_program import (
    Constant,
    FlatProgram,
    StateInput,
    check_results,
    enter_compilation,
    flatten_program,
    list_bounds,
    list_state,
    name_size,
)
from coilwork_frontend.torch_compat.versions import NEWEST, OLDEST
from coilwork_runtime.cpp.toolchain import find_toolchain
from coilwork_runtime.dtypes import get_dtype_name
from coilwork_runtime.errors import RuntimeFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A way to call a model: what `torch.export.export` takes.

    Several in a list are variants of one entry point, for other shapes; the first that fits a call is run.
    With `loss`, the number of a result that is one float, it is a step of training: it returns the results,
    and a dict with the gradients of that one by the names of parameters and inputs.
    """

    model: torch.nn.Module | ExportedProgram
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    dynamic_shapes: Any = None
    loss: int | None = None


Exportable = torch.nn.Module | ExportedProgram | Mapping[str, Entry | Sequence[Entry]]


Take = Callable[[Any], Any]
"""Is given the compiled graph, with the roles that are bound around it, and returns it."""
SETTINGS: Final[Mapping[str, object]] = MappingProxyType(
    {"wrapper": PACKAGE.name, "strict": True, "freezing": False, "size_asserts": True}
)
"""The options that a compiler needs for exported programs: weights stay inputs, nothing runs eagerly, and a
call with other inputs is refused, or copies them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """Compiles flat graphs.

    Attributes:
        compile: compiles a graph for a target, or for the devices that are here if that is empty, with
            `SETTINGS`; it hands each ATen graph to the third argument.
        devices: the type of devices of each target, by name.
    """

    compile: Callable[[FlatProgram, str, Take], None]
    devices: Mapping[str, str]


def export(
    model: Exportable,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    compiler: Compiler,
    path: str | PathLike[str],
    dynamic_shapes: Any = None,
    loss: int | None = None,
    target: str | Sequence[str] | None = None,
    name: str = "",
    keeps_texts: bool = False,
    tunes: bool = False,
) -> str:
    """Compile a model ahead of time and write it as a package; return the package's digest.

    Args:
        model: a module, an exported program, or entry points by name.
        args, kwargs, dynamic_shapes: of a module, as `torch.export.export` takes them.
        loss: as in `Entry`.
        path: the file to write.
        target: what to compile for, such as `sm_90` or `x86-64-avx2`, or several. Default: the devices of the
            model, as they are here.
        name: of the model. Default: that of its class.
        keeps_texts: put the texts of the kernels in, for people.
        tunes: run the program on the GPU that is here, which times the candidates of its kernels, and package
            the fastest.

    Raises:
        ExportError: the model cannot be exported, or not be tuned here.
        CompileError: it cannot be compiled.
        PackageError: the file cannot be written.
    """
    entries = (
        model
        if isinstance(model, Mapping)
        else {MAIN: _make_entry(model, args, kwargs, dynamic_shapes, loss)}
    )
    package = build_package(
        entries, compiler, targets=_list_targets(target), name=name, keeps_texts=keeps_texts, tunes=tunes
    )
    package.write(Path(path))
    return package.digest


def _make_entry(
    model: torch.nn.Module | ExportedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    loss: int | None = None,
) -> Entry:
    if not isinstance(args, tuple | list):
        raise ExportError(
            "wrong-arguments",
            f"args is a {type(args).__name__}, and no tuple of arguments",
            remedy="write (x,) for one argument",
        )
    return Entry(model=model, args=tuple(args), kwargs=kwargs, dynamic_shapes=dynamic_shapes, loss=loss)


def _check_is_somewhere(program: ExportedProgram, targets: Sequence[str]) -> None:
    values = [*program.state_dict.values(), *list_leaves(program.example_inputs)]
    if "" in targets and any(isinstance(one, torch.Tensor) and one.is_meta for one in values):
        raise ExportError(
            "no-target",
            "the model is on meta, and nothing says what it is to run on",
            remedy="name a target, such as sm_90 or x86-64-v3",
        )


# Names that compilers have for what a target needs.
_LEVELS: Final[Mapping[str, str]] = MappingProxyType(
    {"x86-64-v3": "x86-64-avx2", "x86-64-v4": "x86-64-avx512", "aarch64": "aarch64-neon"}
)


def _list_targets(target: str | Sequence[str] | None) -> tuple[str, ...]:
    if target is None:
        return ("",)
    names = (target,) if isinstance(target, str) else target
    return tuple(_LEVELS.get(name, name) for name in names)


def build_package(
    entries: Mapping[str, Entry | Sequence[Entry]],
    compiler: Compiler,
    *,
    targets: Sequence[str] = ("",),
    name: str = "",
    keeps_texts: bool = False,
    tunes: bool = False,
) -> Package:
    """Compile entry points for each of `targets`, and package them.

    Raises:
        ExportError, CompileError: as `export`.
    """
    if not targets:
        raise ExportError(
            "no-target", "the list of targets is empty", remedy="name one, or leave the argument out"
        )
    programs: list[EntryProgram] = []
    state = _States()
    for key, given in entries.items():
        for one in [given] if isinstance(given, Entry) else given:
            program = capture(one)
            name = name or _name_of(one)
            state.add(list_state(program, one.model if isinstance(one.model, torch.nn.Module) else None))
            _check_is_somewhere(program, targets)
            for target in targets:
                device = _find_device(target, compiler.devices)
                flat = flatten_program(program, device, target=target, loss=one.loss)
                compiled = _compile(compiler, flat, target)
                if tunes:
                    compiled = replace(compiled, chosen=tune(compiled, flat, program))
                programs.append(_describe_entry(key, flat, compiled))
    return make_package(
        name=name,
        entries=programs,
        state=state.values,
        made_by={"coilwork-aot": __version__, "torch": torch.__version__},
        torch_range=(f"{OLDEST[0]}.{OLDEST[1]}", f"{NEWEST[0]}.{NEWEST[1] + 1}"),
        keeps_texts=keeps_texts,
    )


def _find_device(target: str, devices: Mapping[str, str]) -> str:
    """Return the device of programs for `target`; empty for those that are here.

    Raises:
        ExportError: there is no such target, or this machine does not build for it.
    """
    family = next((one for one in MACHINES if target.startswith(one)), "")
    if target in devices and family:
        toolchain = find_toolchain()
        if toolchain.machine not in MACHINES[family]:
            raise ExportError(
                "no-cross-compiler",
                f"the C++ compiler makes no code for {target}",
                reason=f"{toolchain.command} builds for {toolchain.machine}",
                remedy=f"name one that does by CXX, such as CXX={MACHINES[family][0]}-linux-gnu-g++",
            )
    if target and target not in devices:
        raise ExportError(
            "unknown-target",
            f"there is no target {target!r}",
            reason=f"there are {', '.join(devices)}",
            remedy="name one of them, or none for the devices that are here",
        )
    return devices.get(target, "")


def _compile(compiler: Compiler, flat: FlatProgram, target: str) -> CompiledProgram:
    roles: list[Roles] = []

    def take(graph: Any) -> Any:
        if graph.bound is not None:
            roles.append(graph.bound)
        return graph

    try:
        with keep_programs() as kept, enter_compilation(flat):
            compiler.compile(flat, target, take)
    except (CoilworkError, RuntimeFault):
        raise
    # whatever a stage raises is the compiler's fault
    except Exception as error:
        raise ExportError(
            "not-compiled",
            "the exported program cannot be compiled",
            reason=describe(error)[:2000],
            remedy="report it; until then, leave operators to ATen with the option fallback",
        ) from error
    if len(kept.programs) != 1 or len(roles) != 1:
        raise ExportError(
            "not-one-program",
            f"the exported program has become {len(kept.programs)} programs, with Python between them",
            remedy="leave out of the model what Python has to call; warnings name it",
        )
    (program,), (bound,) = kept.programs, roles
    convention = bound.convention
    results = program.results if convention.gives is None else convention.gives
    check_results(flat, results, bound.functions)
    return CompiledProgram(
        graph=program.options.graph,
        roles=str(convention),
        builder=program.options.builder,
        target=program.options.target,
        rounds_freely=program.options.settings.rounds_freely,
    )


def capture(entry: Entry) -> ExportedProgram:
    """Return the exported program of an entry point.

    Raises:
        ExportError: torch cannot export the model.
    """
    if isinstance(entry.model, ExportedProgram):
        return entry.model
    kwargs = dict(entry.kwargs or {})
    try:
        # a step records gradients, so what the model does under no_grad is in the graph
        with torch.set_grad_enabled(entry.loss is not None):
            return torch.export.export(
                entry.model, entry.args, kwargs, dynamic_shapes=entry.dynamic_shapes, strict=False
            )
    # torch raises errors of many kinds, and all of them are about the model
    except Exception as error:
        raise ExportError(
            "not-exportable",
            f"torch cannot export {type(entry.model).__name__}",
            reason=f"{type(error).__name__}: {error}"[:2000],
            remedy="export it by torch.export.export, which says more, and hand over the exported program",
        ) from error


def _name_of(entry: Entry) -> str:
    return type(entry.model).__name__ if isinstance(entry.model, torch.nn.Module) else "model"


@dataclass(slots=True)
class _States:
    """The state of all entry points by name."""

    values: dict[str, StateValue] = field(default_factory=dict)

    def add(self, inputs: Iterable[StateInput]) -> None:
        for one in inputs:
            known = self.values.get(one.name)
            if known is None:
                self.values[one.name] = StateValue(
                    kind=one.kind, is_persistent=one.is_persistent, value=one.value
                )
            elif not _is_same(known.value, one.value):
                raise ExportError(
                    "conflicting-state",
                    f"two entry points have different tensors called {one.name}",
                    remedy="export entry points of one model, or packages of their own",
                )


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    facts = [(value.dtype, value.shape, value.stride(), value.device) for value in (one, other)]
    if facts[0] != facts[1] or one.is_meta:
        return facts[0] == facts[1]
    return one.data_ptr() == other.data_ptr() or bool(torch.equal(one, other))


def _describe_entry(name: str, flat: FlatProgram, compiled: CompiledProgram) -> EntryProgram:
    first = len(flat.state)
    inputs = []
    for label, leaf in zip(flat.input_names, flat.input_leaves, strict=True):
        if isinstance(leaf, Constant):
            inputs.append(Leaf(kind="fixed", name=label, value=leaf.value))
        else:
            is_written = first + leaf in flat.written
            inputs.append(_describe_input(label, leaf, flat.inputs[first + leaf], is_written=is_written))
    results = [
        Leaf(kind="fixed", value=leaf.value)
        if isinstance(leaf, Constant)
        else Leaf(kind="tensor", position=leaf)
        for leaf in flat.result_leaves
    ]
    out_tree = encode_tree(flat.out_spec)
    if flat.gradients:
        gradients = Tree("dict", list(flat.gradients), (Tree(),) * len(flat.gradients))
        out_tree = Tree("tuple", None, (out_tree, gradients))
    return EntryProgram(
        name=name,
        compiled=compiled,
        inputs=tuple(inputs),
        results=tuple(results),
        in_tree=encode_tree(flat.in_spec),
        out_tree=out_tree,
        symbols=list_bounds(flat.inputs[first:]),
        state=tuple(one.name for one in flat.state),
    )


def _describe_input(name: str, position: int, value: Any, *, is_written: bool) -> Leaf:
    if not isinstance(value, torch.Tensor):
        return Leaf(kind="number", name=name, position=position, sizes=(name_size(value),))
    return Leaf(
        kind="tensor",
        name=name,
        position=position,
        dtype=get_dtype_name(value.dtype),
        device=value.device.type,
        sizes=tuple(map(name_size, value.shape)),
        strides=_describe_strides(value),
        is_written=is_written,
    )


def _describe_strides(value: torch.Tensor) -> tuple[Size, ...]:
    """Return static strides as numbers, and open ones as the number of the dimension that they run over."""
    strides: list[Size] = []
    for stride in _list_strides(value):
        if isinstance(stride, int):
            strides.append(stride)
            continue
        products = (
            str(number)
            for number, (extent, step) in enumerate(zip(value.shape, value.stride(), strict=True))
            if str(extent * step) == str(stride) and str(step) != str(stride)
        )
        strides.append(next(products, ""))
    return tuple(strides)


def _list_strides(value: torch.Tensor) -> tuple[int | torch.SymInt, ...]:
    return tuple(value.stride())


# ---- One graph by itself ----


class StandaloneModel:
    """A compiled graph: call it, save it, or load it."""

    def __init__(self, package: Package, model: LoadedModel) -> None:
        self._package = package
        self.model = model

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph; as `LoadedModel.__call__`."""
        return self.model(*inputs)

    def save(self, path: str | PathLike[str]) -> str:
        """Write the package, and return its digest.

        Raises:
            PackageError: it cannot be written.
        """
        self._package.write(Path(path))
        return self._package.digest

    load: Callable[..., LoadedModel] = staticmethod(load)


def standalone_compile(
    gm: torch.nn.Module,
    inputs: Sequence[Any],
    *,
    compiler: Compiler,
    dynamic_shapes: Any = None,
    device: str | torch.device | None = None,
    store: Store | None = None,
) -> StandaloneModel:
    """Compile one graph for the devices that are here, without `torch.compile` around it.

    Raises:
        ExportError, CompileError: as `export`.
    """
    entry = _make_entry(gm, tuple(inputs), None, dynamic_shapes)
    package = build_package({MAIN: entry}, compiler)
    data = bytearray(package.encode())
    archive = Archive(records=read_headers(data, "the compiled graph"), memory=data)
    return StandaloneModel(package, load_archive(archive, "the compiled graph", device=device, store=store))


# ---- With a compiler ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """The functions of this package with a compiler of their own.

    Attributes:
        make_compiler: makes a compiler with options as of `torch.compile`.
        open_store: opens the store where the native executor lies.
    """

    make_compiler: Callable[[Mapping[str, object] | None], Compiler]
    open_store: Callable[[], Store]

    def export(
        self,
        model: Exportable,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        path: str | PathLike[str],
        dynamic_shapes: Any = None,
        loss: int | None = None,
        target: str | Sequence[str] | None = None,
        name: str = "",
        keeps_texts: bool = False,
        tunes: bool = False,
        options: Mapping[str, object] | None = None,
    ) -> str:
        """Do as `export`, with `options` as of `torch.compile`."""
        compiler = self.make_compiler(options)
        return export(
            model,
            args,
            kwargs,
            compiler=compiler,
            path=path,
            dynamic_shapes=dynamic_shapes,
            loss=loss,
            target=target,
            name=name,
            keeps_texts=keeps_texts,
            tunes=tunes,
        )

    def load(
        self,
        path: str | PathLike[str],
        *,
        device: str | torch.device | None = None,
        weights: Weights | None = None,
        share: LoadedModel | None = None,
        digest: str = "",
        verify_weights: bool = True,
    ) -> LoadedModel:
        """Do as `coilwork_aot.load`; the native executor may lie in the compiler's store."""
        return load(
            path,
            device=device,
            weights=weights,
            share=share,
            digest=digest,
            verify_weights=verify_weights,
            store=self.open_store(),
        )

    def standalone_compile(
        self,
        gm: torch.nn.Module,
        inputs: Sequence[Any],
        *,
        dynamic_shapes: Any = None,
        options: Mapping[str, object] | None = None,
    ) -> StandaloneModel:
        """Do as `standalone_compile`, with `options` as of `torch.compile`."""
        return standalone_compile(
            gm,
            inputs,
            compiler=self.make_compiler(options),
            dynamic_shapes=dynamic_shapes,
            store=self.open_store(),
        )
