"""The scheduler's own error."""

from __future__ import annotations

from coilwork_ir.errors import CoilworkIRError


class ScheduleError(CoilworkIRError):
    """A graph that can't be scheduled: it breaks a rule of the loop IR, or the target lacks what a node
    needs.
    """
