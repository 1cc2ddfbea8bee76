"""The settings of a compilation, from what a user gives (`coilwork_frontend.user_options`)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

from coilwork.compile_options import OPTIONS, CompileOptions
from coilwork_frontend.user_options import UserOptions, check_fallback, check_rewrites
from coilwork_lowering.registry import RULES
from coilwork_lowering.rewrites import REWRITES

GIVEN: Final = UserOptions(table=OPTIONS, around=ContextVar("coilwork.options", default=MappingProxyType({})))
resolve = GIVEN.resolve


def options(**settings: object) -> AbstractContextManager[None]:
    """Give `settings` to what this thread compiles inside of the block, unless its own options say otherwise.

    A function is compiled at its first call. What has been compiled stays as it is.

    Raises:
        OptionError: unknown name, or a value of the wrong type; the message names the nearest known one.
    """
    return GIVEN.enter(settings, source="coilwork.options")


def check_names(options: CompileOptions) -> None:
    """Refuse operators and rewrites that do not exist.

    Raises:
        OptionError: `fallback` names no operator, or `skip_rewrites` no rewrite; the message names the
            nearest known one.
    """
    check_fallback(options.fallback, RULES)
    check_rewrites(options.skip_rewrites, (one.name for one in (*REWRITES, *options.rewrites)))
