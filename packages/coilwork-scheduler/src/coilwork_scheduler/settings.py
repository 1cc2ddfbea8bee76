"""The settings that every pass reads beside the graph: targets, the caller's options, and what the pipeline
adds to them.

The options alone are in `options.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from coilwork_ir.target import Targets
from coilwork_scheduler.contractions.registry import Registry
from coilwork_scheduler.cost_model import CostModel, SizeHints
from coilwork_scheduler.optimization_remarks import Remarks
from coilwork_scheduler.options import ScheduleOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The context of every pass: what stays the same while a graph becomes a schedule.

    Attributes:
        targets: the devices.
        options: the caller's.
        model: estimates what kernels cost.
        sizes: likely ones.
        remarks: the one place that decisions go to.
        registry: what may compute contractions, convolutions and attention.
        keeps_wide: kernels keep what decides something as wide as they computed it, since the graph rounds in
            between.
    """

    targets: Targets
    options: ScheduleOptions
    model: CostModel
    sizes: SizeHints
    remarks: Remarks
    registry: Registry
    keeps_wide: bool = False
