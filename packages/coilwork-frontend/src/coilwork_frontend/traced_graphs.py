"""Graphs that were traced by an earlier process, and are not traced again.

What AOTAutograd makes of one of Dynamo's graphs is written down as a record: the compiled graphs, of which
the compiler keeps the programs, and AOTAutograd's facts about inputs and results. The record's key is the
text of Dynamo's graph (`captured_key.py`). A process that finds it loads the programs and puts torch's own
wrappers around them (`torch_compat/traced_results.py`).

A record is written when all graphs of a captured graph are compiled; the backward graph often is at its
first call. Graphs whose compilation warned, or that are not cached, leave no record. Tracing for other sizes
may add other guards: a captured graph has up to `MOST_VARIANTS` records, of which the first is restored whose
guards hold. The cache is told why a graph is traced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

from torch import SymFloat, fx

from coilwork_frontend.captured_key import make_captured_key
from coilwork_frontend.errors import describe
from coilwork_frontend.graph_text import UnkeyableGraphError
from coilwork_frontend.source_lines import list_source_lines, match_lines, pack_lines, unpack_lines
from coilwork_frontend.torch_compat.aot_autograd import (
    HasDirect,
    TraceObserver,
    UntracedCall,
    count_compilation,
    keep_untraced,
)
from coilwork_frontend.torch_compat.dynamo import (
    CapturedAgain,
    capture_with_constants,
    list_constant_fractions,
)
from coilwork_frontend.torch_compat.size_guards import (
    SizeError,
    add_guards,
    describe_effect,
    find_size_environment,
    hold_guards,
    write_guards,
)
from coilwork_frontend.torch_compat.traced_results import (
    Boxed,
    UnstorableError,
    describe_metadata,
    get_current_metadata,
    list_detached,
    read_metadata,
    wrap_compiled,
)

Record = dict[str, Any]
"""JSON."""
MOST_VARIANTS: Final = 4
"""Records of one captured graph, for sizes that are guarded otherwise."""
logger = logging.getLogger("coilwork")


class RecordEntry(Protocol):
    """The place of one record in a cache."""

    def read(self) -> Record | None:
        """Return the record; None if there is none."""

    def write(self, value: Record) -> None:
        """Keep `value`."""


class TraceCache(Protocol):
    """Keeps records of traced graphs, and loads the compiled graphs that they name."""

    def open(self, text: str) -> RecordEntry:
        """Return the place of the record whose key is made of `text`."""

    def note_restored(self) -> None:
        """Hear that a graph is restored."""

    def note_traced(self, reason: str) -> None:
        """Hear why a graph is traced, or will be by the next process."""

    def load(self, graph: Record, lines: Sequence[str]) -> Callable[[list[Any]], Any] | None:
        """Return the compiled graph that a record describes, naming source `lines`; None if it cannot be had
        any more."""


@runtime_checkable
class HasRecord(Protocol):
    """A compiled graph that another process can load."""

    @property
    def record(self) -> Record | None:
        """The description for `TraceCache.load`; None if the graph cannot be loaded."""

    @property
    def refusal(self) -> str:
        """The reason if there is no record."""


class SizeWatch:
    """What tracing adds to what is known of symbolic sizes, from now on."""

    def __init__(self) -> None:
        self._environment = find_size_environment()
        self._first = 0 if self._environment is None else len(self._environment.guards)

    def describe(self) -> Record | None:
        """Return the guards that tracing added, and all that is known then, as JSON; None without sizes.

        Raises:
            SizeError: they have no form as data.
        """
        if self._environment is None:
            return None
        guards = write_guards(self._environment, self._first)
        return {"guards": guards, "after": describe_effect(self._environment)}


@dataclass(slots=True, kw_only=True)
class TraceRecorder:
    """Collects the record of one captured graph, and writes it when it is whole.

    `lines` are the user's source lines of Dynamo's graph, which compiled programs name. `refuse` is told why
    there will be no record.
    """

    entry: RecordEntry
    lines: Sequence[str]
    refuse: Callable[[str], None]
    watch: SizeWatch = field(default_factory=SizeWatch)
    sizes: Record | None = None
    graphs: dict[str, Record] = field(default_factory=dict)
    metadata: Any = None
    gradients: Sequence[object] | None = None
    is_direct: bool = False
    is_returned: bool = False
    is_refused: bool = False

    def note_halves(self, forward: fx.GraphModule, backward: fx.GraphModule) -> None:
        """Note which inputs get gradients from the `backward` graph."""
        (results,) = backward.graph.output_node().args
        assert isinstance(results, list | tuple)
        self.gradients = tuple(None if one is None else True for one in results)

    def note_graph(self, role: str, compiled: object) -> None:
        """Note one compiled graph, in the context in which AOTAutograd calls its compiler."""
        record = compiled.record if isinstance(compiled, HasRecord) else None
        if record is None:
            reason = compiled.refusal if isinstance(compiled, HasRecord) else "it is no compiled graph"
            self._refuse(f"no record of its {role} graph: {reason}")
            return
        self.graphs[role] = record
        if role != "backward":
            self.metadata = get_current_metadata()
        self._finish()

    def note_return(self, *, is_direct: bool) -> None:
        """Note that AOTAutograd is done; with `is_direct` nothing of it is around the graph."""
        self.is_direct, self.is_returned = is_direct, True
        try:
            self.sizes = self.watch.describe()
        except SizeError as error:
            self._refuse(str(error))
        self._finish()

    def _refuse(self, reason: str) -> None:
        if not self.is_refused:
            self.refuse(reason)
        self.is_refused = True

    def _finish(self) -> None:
        roles = set(self.graphs)
        whole = roles in ({"inference"}, {"forward", "backward"})
        if self.is_refused or not self.is_returned or not whole:
            return
        record: Record = {
            "graphs": self.graphs,
            "lines": pack_lines(self.lines),
            "direct": self.is_direct,
            "sizes": self.sizes,
        }
        if not self.is_direct:
            try:
                record["metadata"] = describe_metadata(self.metadata)
                record["detached"] = (
                    list_detached(self.gradients or (), self.metadata) if len(roles) == 2 else []
                )
            except UnstorableError as error:
                self._refuse(str(error))
                return
        others = [one for one in _list_variants(self.entry.read()) if one.get("sizes") != self.sizes]
        self.entry.write({"variants": [record, *others][:MOST_VARIANTS]})


def _list_variants(stored: Record | None) -> list[Record]:
    variants = None if stored is None else stored.get("variants")
    return [one for one in variants if isinstance(one, dict)] if isinstance(variants, list) else []


TracingCompiler = Callable[[fx.GraphModule, Sequence[Any], TraceObserver | None], Callable[..., Any]]
"""Traces and compiles one of Dynamo's graphs for its inputs, and tells an observer."""


def compile_or_restore(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    compiler: TracingCompiler,
    cache: TraceCache | None,
    facts: str,
) -> Callable[..., Any]:
    """Return the call of Dynamo's graph `gm`: restored from `cache`, or traced by `compiler`, and kept.

    `facts` is text of what tracing depends on besides the graph.
    """
    if cache is None:
        return compiler(gm, example_inputs, None)
    try:
        text = make_captured_key(gm, example_inputs, facts)
    except UnkeyableGraphError as error:
        cache.note_traced(str(error))
        return compiler(gm, example_inputs, None)
    if any(isinstance(node.meta.get("example_value"), SymFloat) for node in gm.graph.nodes):
        return _compile_fractions(gm, example_inputs, compiler, cache, text)
    entry, lines = cache.open(text), list_source_lines(gm)
    # before guards of records are added, some of which may be left if restoring fails
    recorder = TraceRecorder(entry=entry, lines=lines, refuse=cache.note_traced)
    restored = restore_traced(cache, entry.read(), lines)
    if restored is not None:
        count_compilation()
        cache.note_restored()
        return restored
    return compiler(gm, example_inputs, recorder)


def _compile_fractions(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: TracingCompiler, cache: TraceCache, text: str
) -> Callable[..., Any]:
    """Compile a graph with symbolic fractions, which no process can restore.

    Tracing most often finds that some of them are constants of an operator, as the epsilon of a norm is, and
    has Dynamo capture the graph again, without them. The record says which: another process need not trace.
    """
    entry = cache.open(text)
    stored = entry.read()
    names = [] if stored is None else stored.get("constants")
    if isinstance(names, list):
        capture_with_constants([name for name in names if isinstance(name, str)])
    cache.note_traced("symbolic fraction")
    known = list_constant_fractions()
    try:
        return compiler(gm, example_inputs, None)
    except CapturedAgain:
        entry.write({"constants": sorted(list_constant_fractions() - known)})
        raise


def restore_traced(
    cache: TraceCache, stored: Record | None, lines: Sequence[str]
) -> Callable[..., Any] | None:
    """Return the call, with inputs one by one, of a captured graph that was traced before.

    None if there is no record, its guards do not hold, or a compiled graph that it names is gone. Compiled
    graphs will name the source `lines` of Dynamo's graph, and the guards are added to those of its sizes.
    """
    if stored is None:
        cache.note_traced("no process has traced it yet")
        return None
    reason = "the guards of its records do not hold for these sizes"
    try:
        for record in _list_variants(stored):
            sizes = record["sizes"]
            if sizes is not None and not hold_guards(sizes["guards"]):
                continue
            restored = _restore(cache, record, lines)
            if restored is not None:
                if sizes is not None:
                    # last, as guards cannot be taken back
                    add_guards(sizes["guards"], sizes["after"])
                return restored
            reason = "a compiled graph is gone, or one line of its source has become several"
    # Tracing again is right, whatever torch makes of a damaged record.
    except (
        UnstorableError,
        SizeError,
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        logger.warning("a captured graph is traced again: its record does not load: %s", describe(error))
        reason = "its record does not load"
    cache.note_traced(reason)
    return None


def restore_guarded(cache: TraceCache, stored: Record) -> Callable[..., Any] | None:
    """Return the call of the only graph of a record, whose guards on sizes the caller checks; None if a
    compiled graph that it names is gone.

    Raises:
        UnstorableError, LookupError, TypeError, ValueError: the record is damaged, or has several graphs.
    """
    (record,) = _list_variants(stored)
    return _restore(cache, record, unpack_lines(record["lines"]))


def _restore(cache: TraceCache, record: Mapping[str, Any], lines: Sequence[str]) -> Callable[..., Any] | None:
    rename = match_lines(unpack_lines(record["lines"]), lines)
    if rename is None:
        return None
    graphs: dict[str, Boxed] = {}
    for role, graph in record["graphs"].items():
        loaded = cache.load(graph, [rename(line) for line in unpack_lines(graph["lines"])])
        if loaded is None:
            return None
        graphs[role] = loaded
    if record["direct"]:
        whole: object = graphs["inference"]
        return whole.direct if isinstance(whole, HasDirect) else None
    metadata = read_metadata(record["metadata"])
    main = graphs["inference"] if "inference" in graphs else graphs["forward"]
    backward = graphs.get("backward")
    untraced = None if backward is None else UntracedCall(backward)
    return keep_untraced(wrap_compiled(main, untraced, metadata, record["detached"]))
