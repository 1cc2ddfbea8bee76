"""The settings of a compilation, from what a user gives.

They come from four places, later ones win: the defaults, environment variables, blocks around the call, and
what the call itself is given, `torch.compile(..., mode=..., options={...})` for one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from coilwork_frontend.options import Options, OptionTable

_O = TypeVar("_O", bound=Options)


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions(Generic[_O]):
    """Where settings of the options in `table` come from.

    Attributes:
        around: what blocks say that the calling thread is in. It ends here, at the edge: compilers get
            values.
    """

    table: OptionTable[_O]
    around: ContextVar[Mapping[str, Any]]

    def resolve(
        self,
        *,
        mode: str | None = None,
        options: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> _O:
        """The settings for one compilation.

        Raises:
            OptionError: unknown name or mode, or a value of the wrong type; the message names the nearest
                known one.

        Warns:
            IgnoredOptionWarning: a variable that is no option, or an option that has no effect beside the
                others.
            NotBuiltYetWarning: a value of which a part has no effect yet; once per process.
        """
        chosen = self.table.read_environment(os.environ if environ is None else environ)
        chosen.update(self.around.get())
        if mode is not None:
            chosen |= self.table.check({"mode": mode}, source="torch.compile")
        chosen |= self.table.check(options or {}, source="options")
        settings = self.table.settle(self.table.cls(**chosen), chosen.keys())
        self.table.warn(settings, chosen.keys())
        return settings

    @contextmanager
    def enter(self, settings: Mapping[str, object], *, source: str) -> Iterator[None]:
        """A block that gives `settings` to what this thread compiles inside of it, unless its own options say
        otherwise. `source` is how messages call it.

        Raises:
            OptionError: unknown name, or a value of the wrong type; the message names the nearest known one.
        """
        given = self.table.check(settings, source=source)
        token = self.around.set(MappingProxyType({**self.around.get(), **given}))
        try:
            yield
        finally:
            self.around.reset(token)
