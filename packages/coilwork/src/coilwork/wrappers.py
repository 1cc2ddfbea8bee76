"""The wrappers that are installed: ours, and what other packages register under `coilwork.wrappers`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork.errors import OptionError
from coilwork_ir.registration import Registered, RegistrationError, list_registered
from coilwork_ir.wrapper import GROUP, Wrapper

# As the `pyproject.toml` of our packages say, for processes that run from a source tree.
OWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "python": "coilwork.module_wrapper:PYTHON",
        "native": "coilwork.module_wrapper:NATIVE",
        "fx": "coilwork_wrapper.fx.wrapper:FX",
        "cpp": "coilwork_cpp_wrapper.wrapper:CPP",
    }
)


def list_wrappers() -> tuple[Registered, ...]:
    """All that are installed, none of them imported."""
    return _list(tuple(sys.path))


@functools.lru_cache(maxsize=1)
def _list(path: tuple[str, ...]) -> tuple[Registered, ...]:
    """Reading the metadata of all packages on `path` takes milliseconds, and each compile asks."""
    return list_registered(GROUP, own=OWN)


def wrapper_names() -> tuple[str, ...]:
    """Values of the option `wrapper`."""
    return tuple(entry.name for entry in list_wrappers())


def find_wrapper(name: str) -> Wrapper:
    """The wrapper that is registered as `name`. Imports its package.

    Raises:
        OptionError: there is none; the message names those that are installed.
        RegistrationError: it cannot be imported, or is no wrapper.
    """
    found = {entry.name: entry for entry in list_wrappers()}.get(name)
    if found is None:
        raise OptionError(
            "unknown-wrapper",
            f"no wrapper {name!r} is installed",
            remedy=f"installed: {', '.join(map(repr, wrapper_names()))}",
        )
    wrapper = found.load()
    if not isinstance(wrapper, Wrapper) or wrapper.name != name:
        raise RegistrationError(
            "registered-value",
            f"{found.place}, registered as {name!r} for {GROUP}, is no wrapper of that name",
            remedy=f"upgrade or uninstall {found.origin}" if found.origin else "",
        )
    return wrapper
