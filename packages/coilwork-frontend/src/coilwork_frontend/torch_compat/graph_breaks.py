"""Where Dynamo ended a graph, as its counters say."""

from __future__ import annotations

from torch._dynamo.utils import counters


def list_graph_breaks() -> dict[str, int]:
    """The reasons for which Dynamo ended graphs in this process so far, on one line each, and how often."""
    return {" ".join(str(reason).split()): int(count) for reason, count in counters["graph_break"].items()}
