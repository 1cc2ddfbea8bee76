"""Torch's structured trace, which `TORCH_TRACE=folder` writes and tlparse reads: phases and texts of ours in
it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch._dynamo.utils import get_chromium_event_logger
from torch._logging._internal import trace_structured


@contextmanager
def trace_phase(name: str) -> Iterator[None]:
    """Show in torch's trace, and in a profile that torch records, that `name` is going on in this thread."""
    events = get_chromium_event_logger()
    began_ns = time.time_ns()
    events.log_event_start(name, began_ns, {})
    try:
        yield
    finally:
        events.log_event_end(name, time.time_ns(), {}, began_ns, False)


def trace_artifact(name: str, text: str) -> None:
    """Add the JSON `text` to torch's trace, as an artifact of the graph that Dynamo compiles."""
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "json"},
        payload_fn=lambda: text,
        expect_trace_id=False,
    )
