"""Conformance kits of the runtime: what a package that brings a device runs in its tests. Open `device.py`
first.
"""

from coilwork_runtime.conformance.device import (
    CHECKS,
    DeviceResult,
    Sample,
    Samples,
    check_device,
    failures,
)

__all__ = ["CHECKS", "DeviceResult", "Sample", "Samples", "check_device", "failures"]
