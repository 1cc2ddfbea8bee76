"""The device `queued`, an example of one that Coilwork does not know.

`queued.cpp` is the device as torch sees it, `device.py` how kernels are launched on it, `products.py` its
library for matrices, and `backend.py` the value that Coilwork finds by its entry point. Torch calls
`register` when it is imported.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import ModuleType

import torch

NAME = "queued"
LIBRARY = Path(__file__).with_name("libqueued.so")


def register() -> None:
    """Make `torch.device("queued")` known."""
    torch.ops.load_library(LIBRARY)
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module())
    torch.utils.generate_methods_for_privateuse1_backend()


def _module() -> ModuleType:
    """`torch.queued`: what torch asks of a device's module."""
    module = ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    # for those who want to see that kernels got here
    library = ctypes.CDLL(str(LIBRARY))
    module.count_launches = library.queued_launched
    module.count_products = library.queued_multiplied
    module.count_replays = library.queued_replayed
    return module
