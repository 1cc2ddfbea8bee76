"""A compiler behind Coilwork: graphs of allocations, launches and calls as lists of steps over slots."""

from slot_runner.emitter import SlotEmitter

__all__ = ["SlotEmitter"]
