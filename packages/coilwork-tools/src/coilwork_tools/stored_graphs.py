"""Compiled graphs as records: all that a process needs to run one without the graph, beside its program.

The program and its kernels lie in the graph cache, under the key that the record names. The record has the
graph's roles, its operators one by one, for calls that kernels are not for, and its constants.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, Self, TypeVar

import torch
from torch import fx

from coilwork_frontend.calling_convention.activation_strides import Strides
from coilwork_frontend.calling_convention.aten_graph import AtenGraph
from coilwork_frontend.calling_convention.convention import Roles
from coilwork_frontend.calling_convention.lazy_conjugation import resolve_constant
from coilwork_frontend.calling_convention.operator_call import UnwritableError, read_rows, write_rows
from coilwork_frontend.source_lines import Rename, list_source_lines, match_lines, pack_lines, unpack_lines
from coilwork_frontend.torch_compat.tensors import leave_fake_mode
from coilwork_runtime import KernelBuildError, ProgramBytesError, bind_roles, collect_kinds
from coilwork_runtime.executor.choice import Driven, Loadable
from coilwork_runtime.executor.program_reader import rename_places
from coilwork_runtime.manifest.kernel_manifest import rename_origins
from coilwork_runtime.saved_program import decode_constant, describe_constant, encode_constant
from coilwork_runtime.tensor_kinds import Call, TensorKinds
from coilwork_tools.explain.report import AddedGuard, CompiledGraph, StageClock, announce, read_report
from coilwork_tools.explain.trace_folder import Trace

Record = dict[str, Any]
log = logging.getLogger("coilwork")
MOST_BYTES: Final = 1 << 20
"""Of constants in a record. Graphs with more are traced in each process."""


class StoredProgram(Protocol):
    """A compiled graph in the graph cache."""

    @property
    def module(self) -> str: ...

    @property
    def kernels(self) -> bytes: ...

    @property
    def program(self) -> bytes: ...

    @property
    def refusal(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def report(self) -> Mapping[str, Any]: ...

    @property
    def lines(self) -> Sequence[str]: ...

    def rename(self, texts: Rename, *, program: bytes, kernels: bytes) -> Self: ...


_P = TypeVar("_P", bound=StoredProgram, covariant=True)


class StoredPrograms(Protocol[_P]):
    """The graph cache."""

    def get(self, key: str) -> _P | None: ...

    def drop(self, key: str, reason: str) -> None: ...


class UnrecordedError(Exception):
    """A compiled graph has no record; the message says why."""


@dataclass(frozen=True, slots=True)
class NotedGuard:
    """A guard that compiling added in an earlier process, as it was announced there."""

    condition: str
    text: str

    def __str__(self) -> str:
        return self.text


def describe_graph(
    graph: AtenGraph,
    name: str,
    targets: Mapping[str, str],
    compiled: CompiledGraph,
    outer: Roles,
    guards: Sequence[AddedGuard],
) -> Record:
    """Return the record of `graph`.

    `targets` describes its devices: what its program was compiled for, and what its code needs. It was
    compiled to `compiled`, whose roles will be within `outer`. Tracing it added `guards`.

    Raises:
        UnrecordedError: its program is not cached, or it cannot be written down.
    """
    if compiled.key is None or compiled.roles is None:
        raise UnrecordedError("its program is not cached")
    roles, saved = compiled.roles.wrap(outer), compiled.report.strides_by_position
    if not set(roles.functions) <= {"operators"} or (roles.functions and graph.role != "backward"):
        raise UnrecordedError(f"it is called through {', '.join(sorted(roles.functions))}")
    try:
        constants, operators = _read_constants(graph), write_rows(graph.gm)
    except UnwritableError as error:
        raise UnrecordedError(str(error)) from error
    except KeyError as error:
        raise UnrecordedError(f"it has no constant {error}") from error
    kinds = collect_kinds(graph.example_inputs, resized=graph.is_resized, packed=graph.reads_packed)
    return {
        "name": name,
        "role": graph.role,
        "key": compiled.key,
        "devices": list(graph.devices),
        "targets": dict(targets),
        "lines": pack_lines(list_source_lines(graph.gm)),
        "roles": str(roles.convention),
        "takes_operators": bool(roles.functions),
        "operators": operators,
        "captured_roles": str(graph.convention.make_captured_roles(graph.example_inputs, saved)),
        "kinds": [kinds.allowed, kinds.required, kinds.resized],
        "constants": constants,
        "guards": [[guard.condition, str(guard)] for guard in guards],
    }


def add_record(
    graph: AtenGraph,
    name: str,
    targets: Mapping[str, str],
    compiled: CompiledGraph,
    outer: Roles,
    guards: Sequence[AddedGuard],
) -> CompiledGraph:
    """Return `compiled` with its record, as `describe_graph` makes it, or the reason why it has none."""
    try:
        return replace(compiled, record=describe_graph(graph, name, targets, compiled, outer, guards))
    except UnrecordedError as error:
        return replace(compiled, refusal=str(error))


def _read_constants(graph: AtenGraph) -> dict[str, list[Any]]:
    """Return description and bytes of the constants of `graph`.

    Raises:
        UnrecordedError: they are too large, or not plain.
    """
    named = {str(node.target) for node in graph.gm.graph.find_nodes(op="get_attr")}
    nested = {path for path, part in graph.gm.named_modules() if isinstance(part, fx.GraphModule)}
    paths = named - nested
    # torch calls back ends in fake mode
    with leave_fake_mode():
        constants = {path: resolve_constant(graph.constant(path)) for path in sorted(paths)}
        values = constants.values()
        if any(one.layout != torch.strided or one.is_quantized or one.is_complex() for one in values):
            raise UnrecordedError("a constant is no plain tensor")
        if sum(one.numel() * one.element_size() for one in values) > MOST_BYTES:
            raise UnrecordedError(f"its constants have more than {MOST_BYTES} bytes")
        return {
            path: [describe_constant(value), base64.b64encode(encode_constant(value)).decode()]
            for path, value in constants.items()
        }


def find_stored(programs: StoredPrograms[_P], key: str, lines: Sequence[str]) -> _P | None:
    """Return the program under `key`, naming its source `lines`; None if there is none, or it names one line
    where the program at hand has several, or it is kept as text, and its lines have moved."""
    stored = programs.get(key)
    rename = None if stored is None else match_lines(stored.lines, lines)
    if stored is None or rename is None or rename is str or stored.text:
        return stored if rename is str else None
    try:
        program, kernels = rename_places(stored.program, rename), rename_origins(stored.kernels, rename)
    except (ProgramBytesError, ValueError) as error:
        programs.drop(key, f"its program does not load: {error}")
        return None
    return stored.rename(rename, program=program, kernels=kernels)


def make_loadable(stored: StoredProgram, name: str, constants: Mapping[str, torch.Tensor]) -> Loadable:
    """Return what is loaded of a stored program: the graph `name`, with its `constants` by path."""
    return Loadable(
        name=name,
        module=stored.module,
        kernels=stored.kernels,
        program=stored.program,
        refusal=stored.refusal,
        text=stored.text,
        constants=constants,
        devices=(),
        is_stored=True,
    )


def complete_loadable(
    loadable: Loadable, graph: AtenGraph, name: str, saved: Mapping[int, Strides]
) -> Loadable:
    """Return `loadable` with the facts of the ATen `graph`, called `name`; results have the strides of
    `saved`."""
    kinds = collect_kinds(graph.example_inputs, resized=graph.is_resized, packed=graph.reads_packed)
    operators = graph.operators(saved)
    return replace(loadable, name=name, devices=graph.devices, operators=operators, kinds=kinds)


def restore_graph(
    graph: AtenGraph,
    name: str,
    key: str,
    programs: StoredPrograms[Any],
    load: Callable[[Loadable], Driven],
    *,
    trace: Trace,
    clock: StageClock,
) -> CompiledGraph | None:
    """Return the ATen `graph`, called `name`, from its program under `key`; `load` makes a callable of it.

    None if `programs` has none, or it does not load, and is dropped with a warning. `clock` times this, and
    the program is written to `trace`.
    """
    with clock.stage("cache"):
        entry = find_stored(programs, key, list_source_lines(graph.gm))
    if entry is None:
        return None
    roles = graph.program_roles()
    if entry.roles != str(roles.convention):
        programs.drop(key, "its program was compiled for another calling convention")
        return None
    try:
        stored = read_report(entry.report)
        constants = {one: resolve_constant(graph.constant(one)) for one in entry.constant_keys}
        with clock.stage("build"):
            loadable = make_loadable(entry, name, constants)
            loadable = complete_loadable(loadable, graph, name, stored.strides_by_position)
            driven = load(loadable)
    except (ProgramBytesError, KernelBuildError, KeyError, TypeError) as error:
        programs.drop(key, f"its program does not load: {error}")
        return None
    trace.write_graph(loadable)
    report = replace(stored, graph_id=name, role=graph.role, cache_hit=True, seconds=clock.seconds)
    return CompiledGraph(driven.call, report.name_driver(driven), driven.direct, roles, key=key)


def load_graph(
    record: Mapping[str, Any],
    lines: Sequence[str],
    programs: StoredPrograms[Any],
    load: Callable[[Loadable], Driven],
    clock: StageClock,
) -> CompiledGraph | None:
    """Return the graph of a record, naming its source `lines`; `load` makes a callable of its program, timed
    by `clock`.

    None if `programs` has no such program, or it is damaged, and dropped.

    Raises:
        KeyError, TypeError, ValueError: the record is damaged.
    """
    stored = find_stored(programs, record["key"], lines)
    if stored is None:
        return None
    try:
        return _load_stored(record, lines, stored, load, clock)
    except (ProgramBytesError, KernelBuildError, KeyError, TypeError) as error:
        programs.drop(record["key"], f"its program does not load: {error}")
        return None


def _load_stored(
    record: Mapping[str, Any],
    lines: Sequence[str],
    stored: StoredProgram,
    load: Callable[[Loadable], Driven],
    clock: StageClock,
) -> CompiledGraph:
    name = record["name"]
    with leave_fake_mode():
        constants = {
            path: decode_constant(description, base64.b64decode(data))
            for path, (description, data) in record["constants"].items()
        }
    operators: Call = bind_roles(read_rows(record["operators"], constants), record["captured_roles"], {}).call
    allowed, required, resized = record["kinds"]
    with clock.stage("build"):
        driven = load(
            replace(
                make_loadable(stored, name, constants),
                devices=tuple(record["devices"]),
                operators=operators,
                kinds=TensorKinds(int(allowed), int(required), bool(resized)),
            )
        )
    functions = {"operators": operators} if record["takes_operators"] else {}
    bound = bind_roles(driven.call, record["roles"], functions, direct=driven.direct)
    report = replace(
        read_report(stored.report), graph_id=name, role=record["role"], cache_hit=True, seconds=clock.seconds
    ).name_driver(driven)
    rename = match_lines(unpack_lines(record["lines"]), lines) or str
    guards = [NotedGuard(condition, rename(text)) for condition, text in record["guards"]]
    if guards:
        report = replace(report, guards="\n".join(announce(name, guards)))
    clock.finish(report, Trace(None), note="not traced, ")
    return CompiledGraph(bound.call, report, bound.direct)
