"""The wrappers that are installed, ours and other packages'."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from coilwork_ir.registration import Registry
from coilwork_ir.wrapper import GROUP, Wrapper

# As the `pyproject.toml` of our packages say, for processes that run from a source tree.
WRAPPERS: Final[Registry[Wrapper]] = Registry(
    group=GROUP,
    protocol=Wrapper,
    noun="wrapper",
    own=MappingProxyType(
        {
            "python": "coilwork_wrapper.module_wrapper:PYTHON",
            "native": "coilwork_wrapper.module_wrapper:NATIVE",
            "fx": "coilwork_wrapper.fx_wrapper:FX",
            "cpp": "coilwork_cpp_wrapper.wrapper:CPP",
        }
    ),
)
