"""The outputs of a draft kernel that may take over the memory of an input."""

from __future__ import annotations

from collections.abc import Mapping

from coilwork_ir.buffers import Buffer
from coilwork_ir.kernels.alias_analysis import Timing, time_accesses
from coilwork_scheduler.kernels.compose import Draft


def time_draft(draft: Draft) -> Timing:
    """Find the moments at which `draft` loads and stores."""
    return time_accesses(draft.stores, (check.condition for check in draft.checks), draft.reduced)


def find_aliasing(draft: Draft, buffers: Mapping[str, Buffer]) -> tuple[tuple[str, str], ...]:
    """Find the pairs (output, input) of `draft`, by their buffers, that a call may give the same memory."""
    timing = time_draft(draft)
    written = {store.buffer for store in draft.stores}
    candidates = [(name, buffers[name], buffers[name].span) for name in timing.loads if name not in written]
    taken_over = {new for new, _ in draft.into}
    pairs: list[tuple[str, str]] = []
    for store in draft.stores:
        # what a mask leaves out keeps what was there before, which would be the input
        is_whole = store.mask is None or store.mask is draft.bound
        if store.buffer in taken_over or not is_whole or not candidates:
            continue
        out = buffers[store.buffer]
        span = out.span
        for name, source, source_span in candidates:
            if (
                source.dtype.itemsize == out.dtype.itemsize
                and source_span is span
                and source.device == out.device
                and timing.can_overwrite(name, store)
            ):
                pairs.append((store.buffer, name))
    return tuple(pairs)
