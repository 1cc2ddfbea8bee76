"""Graphs that were traced by an earlier process, and are not traced again.

What AOTAutograd makes of one of Dynamo's graphs is written down as a record: the compiled graphs, of which
the compiler keeps the programs, and AOTAutograd's facts about inputs and results. The record's key is the
text of Dynamo's graph (`captured_key.py`). A process that finds it loads the programs and puts torch's own
wrappers around them (`torch_compat/traced_results.py`).

A record is written when all graphs of a captured graph are compiled; the backward graph often is at its first
call. Graphs whose compilation warned, or that are not cached, leave no record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import fx

from coilwork_frontend.captured_key import make_captured_key
from coilwork_frontend.errors import describe
from coilwork_frontend.source_lines import list_source_lines, match_lines, pack_lines, unpack_lines
from coilwork_frontend.torch_compat.aot_autograd import (
    HasDirect,
    TraceObserver,
    UntracedCall,
    count_compilation,
    keep_untraced,
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

    def load(self, graph: Record, lines: Sequence[str]) -> Callable[[list[Any]], Any] | None:
        """Return the compiled graph that a record describes, naming source `lines`; None if it cannot be had
        any more."""


@runtime_checkable
class HasRecord(Protocol):
    """A compiled graph that another process can load."""

    @property
    def record(self) -> Record | None:
        """The description for `TraceCache.load`; None if the graph cannot be loaded."""


@dataclass(slots=True, kw_only=True)
class TraceRecorder:
    """Collects the record of one captured graph, and writes it when it is whole.

    `lines` are the user's source lines of Dynamo's graph, which compiled programs name.
    """

    entry: RecordEntry
    lines: Sequence[str]
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
            self.is_refused = True
            return
        self.graphs[role] = record
        if role != "backward":
            self.metadata = get_current_metadata()
        self._finish()

    def note_return(self, *, is_direct: bool) -> None:
        """Note that AOTAutograd is done; with `is_direct` nothing of it is around the graph."""
        self.is_direct, self.is_returned = is_direct, True
        self._finish()

    def _finish(self) -> None:
        roles = set(self.graphs)
        whole = roles in ({"inference"}, {"forward", "backward"})
        if self.is_refused or not self.is_returned or not whole:
            return
        record: Record = {"graphs": self.graphs, "lines": pack_lines(self.lines), "direct": self.is_direct}
        if not self.is_direct:
            try:
                record["metadata"] = describe_metadata(self.metadata)
                record["detached"] = (
                    list_detached(self.gradients or (), self.metadata) if len(roles) == 2 else []
                )
            except UnstorableError as error:
                logger.debug("a captured graph is traced in each process: %s", error)
                return
        self.entry.write(record)


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
    text = None if cache is None else make_captured_key(gm, example_inputs, facts)
    if cache is None or text is None:
        return compiler(gm, example_inputs, None)
    entry, lines = cache.open(text), list_source_lines(gm)
    restored = restore_traced(cache, entry.read(), lines)
    if restored is not None:
        count_compilation()
        return restored
    return compiler(gm, example_inputs, TraceRecorder(entry=entry, lines=lines))


def restore_traced(
    cache: TraceCache, record: Record | None, lines: Sequence[str]
) -> Callable[..., Any] | None:
    """Return the call, with inputs one by one, of a captured graph that was traced before.

    None if there is no record, or a compiled graph that it names is gone. Compiled graphs will name
    the source `lines` of Dynamo's graph.
    """
    if record is None:
        return None
    try:
        return _restore(cache, record, lines)
    # Tracing again is right, whatever torch makes of a damaged record.
    except (UnstorableError, LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        logger.warning("a captured graph is traced again: its record does not load: %s", describe(error))
        return None


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
