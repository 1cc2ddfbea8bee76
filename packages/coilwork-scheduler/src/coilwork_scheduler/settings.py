"""`Settings`: what every pass may ask for while a graph becomes a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coilwork_ir.target import Targets
from coilwork_scheduler.cost_model import CostModel, SizeHints
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.remarks import Remarks

if TYPE_CHECKING:
    # the passes that it lists read these settings
    from coilwork_scheduler.contractions.registry import Registry


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
