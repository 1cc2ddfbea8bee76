"""Values that installed packages register under an entry point group, and who brings each.

Back ends (`coilwork.backends`) and wrappers (`coilwork.wrappers`) attach this way, ours like anyone's.
Listing reads metadata only; a value is imported when it is loaded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from coilwork_ir.errors import CoilworkIRError


class RegistrationError(CoilworkIRError):
    """A registered value cannot be used: it does not load, or two packages register one name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """One registered value, not yet imported.

    Attributes:
        name: that it is registered under.
        place: where it is, as `module:ATTRIBUTE`.
        origin: the distribution that brings it, with its version; empty where it runs from a source tree.
        group: the entry point group.
    """

    name: str
    place: str
    origin: str
    group: str

    def load(self) -> object:
        """Return the value. Imports its module.

        Raises:
            RegistrationError: its module or the attribute cannot be imported.
        """
        try:
            return EntryPoint(name=self.name, value=self.place, group=self.group).load()
        # a module of somebody else's may raise anything as it is imported
        except Exception as error:
            raise RegistrationError(
                "registered-value",
                f"{self.place}, registered as {self.name!r} for {self.group}, cannot be imported",
                reason=f"{type(error).__name__}: {error}",
                remedy=f"upgrade or uninstall {self.origin}" if self.origin else "",
            ) from error


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry(Generic[_T]):
    """The values of one protocol that are registered under a group.

    Attributes:
        group: the entry point group.
        protocol: that the values implement; each has a `name`, that it is registered under.
        noun: how messages call one.
        own: as in `list_registered`.
    """

    group: str
    protocol: Any
    noun: str
    own: Mapping[str, str]

    def list(self) -> tuple[Registered, ...]:
        """Return all that are installed, none of them imported.

        Raises:
            RegistrationError: two packages register one name.
        """
        return _list(tuple(sys.path), self.group, tuple(self.own.items()))

    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(entry.name for entry in self.list())

    def find_first(self, serves: Callable[[_T], bool]) -> _T | None:
        """Return the first value that `serves`, ours asked before others; None if none does. Imports those
        that are asked.

        Raises:
            RegistrationError: one of them cannot be imported.
        """
        return next(filter(serves, map(self.find, self.names())), None)

    def find(self, name: str) -> _T:
        """Return the value that is registered as `name`. Imports its package.

        Raises:
            RegistrationError: there is none, it cannot be imported, or it does not implement the protocol.
        """
        entry = next((entry for entry in self.list() if entry.name == name), None)
        if entry is None:
            installed = ", ".join(map(repr, self.names()))
            raise RegistrationError("unknown-name", f"no {self.noun} {name!r} is installed", reason=installed)
        value = entry.load()
        if not isinstance(value, self.protocol) or getattr(value, "name", name) != name:
            parts = (part for part in vars(self.protocol) if not part.startswith("_"))
            missing = ", ".join(sorted(part for part in parts if not hasattr(value, part)))
            raise RegistrationError(
                "registered-value",
                f"{entry.place}, registered as {name!r} for {self.group}, is no {self.noun} of that name",
                reason=f"it has no {missing}" if missing else "",
                remedy=f"upgrade or uninstall {entry.origin}" if entry.origin else "",
            )
        checked: _T = value
        return checked


@functools.lru_cache(maxsize=8)
def _list(path: tuple[str, ...], group: str, own: tuple[tuple[str, str], ...]) -> tuple[Registered, ...]:
    """Reading the metadata of all packages on `path` takes milliseconds, and each compile asks."""
    return list_registered(group, own=dict(own))


def list_registered(group: str, *, own: Mapping[str, str]) -> tuple[Registered, ...]:
    """List the values registered under `group`, in the order of names, the caller's `own` first.

    `own` says by name where the values are that the caller's distribution registers. It is needed where the
    caller runs from a source tree, of which there is no metadata, or that of an older state.

    Raises:
        RegistrationError: two packages register one name.
    """
    registered = {
        name: Registered(name=name, place=place, origin="", group=group) for name, place in own.items()
    }
    others: dict[str, Registered] = {}
    for point in entry_points(group=group):
        origin = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        entry = Registered(name=point.name, place=point.value, origin=origin, group=group)
        known = others.get(point.name)
        if point.name in own and point.value == own[point.name]:
            registered[point.name] = entry
            continue
        if known is not None or point.name in own:
            other = registered[point.name] if known is None else known
            raise RegistrationError(
                "registered-twice",
                f"two packages register {point.name!r} for {group}",
                reason=(
                    f"{other.place} of {other.origin or 'this source tree'}, and {entry.place} of {origin}"
                ),
                remedy="uninstall one of them",
            )
        others[point.name] = entry
    return (*registered.values(), *(others[name] for name in sorted(others)))
