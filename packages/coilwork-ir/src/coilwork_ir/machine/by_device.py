"""Figures by a device's name, for passes that run before graphs have targets: who compiles hands a function
down.

Lowering knows devices as torch names them. The compiler finds their targets' figures; without it, a package's
own tests for instance, those of this package serve, of a processor or of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.machine.data_file import TUNING, read_model
from coilwork_ir.machine.model import MachineModel

FindModel: TypeAlias = Callable[[str], MachineModel]
"""From a device, `"cuda:0"` or only its type, to what is measured of it."""


def find_like_model(device: str) -> MachineModel:
    """The figures of a device like `device`: a CPU's where kernels are loops of a processor, or an H200's."""
    return read_model(TUNING / ("cpu.toml" if has_trait(device, PROCESSOR) else "sm_90.toml"))
