"""The wrappers that are installed, ours and other packages', and who runs what they make."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from coilwork_ir.registration import Registry
from coilwork_ir.wrapper import GROUP, Wrapper
from coilwork_runtime.executor.choice import Executor
from coilwork_wrapper.module_wrapper import ModuleWrapper

# As the `pyproject.toml` of our packages say, for processes that run from a source tree.
WRAPPERS: Final[Registry[Wrapper]] = Registry(
    group=GROUP,
    protocol=Wrapper,
    noun="wrapper",
    own=MappingProxyType(
        {
            "python": "coilwork_wrapper.module_wrapper:PYTHON",
            "native": "coilwork_wrapper.module_wrapper:NATIVE",
            "fx": "coilwork_wrapper.fx.wrapper:FX",
            "cpp": "coilwork_cpp_wrapper.wrapper:CPP",
        }
    ),
)


def executor_of(wrapper: str, executor: Executor) -> Executor | None:
    """Who runs what `wrapper` makes, where the option says `executor`; None if that is no module or bytes."""
    found = WRAPPERS.find(wrapper)
    return (found.executor or executor) if isinstance(found, ModuleWrapper) else None
