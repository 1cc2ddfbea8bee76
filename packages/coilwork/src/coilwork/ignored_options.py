"""Options that a user gives and that have no effect beside others: one row says when, and why.

What depends on the graph (a library on a CPU, an executor that does not load) is told by who finds out.
`cache=False` leaves `cache_dir`
and `redis_url` without effect silently: it asks for just that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Final

from coilwork.compile_options import CompileOptions
from coilwork.module_wrapper import executor_of, makes_module, runs_natively


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An option without effect.

    Attributes:
        option: its name.
        is_asked: tells if its value asks for something.
        is_idle: tells if the other options leave nothing of that.
        why: the reason, as a format of the options' values.
    """

    option: str
    is_asked: Callable[[CompileOptions], bool]
    is_idle: Callable[[CompileOptions], bool]
    why: str


def _has_other_driver(options: CompileOptions) -> bool:
    return not makes_module(options)


def _runs_in_python(options: CompileOptions) -> bool:
    return not runs_natively(options)


def _has_no_choice(options: CompileOptions) -> bool:
    return _has_other_driver(options) or executor_of(options) != options.executor


_DRIVEN: Final = "wrapper={o.wrapper!r} says who drives the kernels"
_NATIVE: Final = (
    "the native executor alone does this, and wrapper={o.wrapper!r}, executor={o.executor!r} runs without it"
)

ROWS: Final = (
    Row(option="executor", is_asked=lambda o: o.executor != "auto", is_idle=_has_no_choice, why=_DRIVEN),
    Row(option="check_lifetimes", is_asked=lambda o: o.check_lifetimes, is_idle=_runs_in_python, why=_NATIVE),
    Row(option="products", is_asked=lambda o: o.products == "cublaslt", is_idle=_runs_in_python, why=_NATIVE),
    Row(
        option="convolutions",
        is_asked=lambda o: o.convolutions == "cudnn",
        is_idle=_runs_in_python,
        why=_NATIVE,
    ),
    Row(option="replay", is_asked=lambda o: o.replay, is_idle=_runs_in_python, why=_NATIVE),
    Row(
        option="replay",
        is_asked=lambda o: o.replay,
        is_idle=lambda o: o.check_nan != "off" and not _runs_in_python(o),
        why="check_nan={o.check_nan!r} looks at each launch",
    ),
    Row(
        option="autotune_budget",
        is_asked=lambda o: o.autotune_budget > 0,
        is_idle=lambda o: not o.mode.startswith("max-autotune"),
        why="mode={o.mode!r} searches for no configurations",
    ),
    Row(
        option="combine",
        is_asked=lambda o: o.combine,
        is_idle=lambda o: not o.fusion,
        why="fusion=False makes every operation a kernel of its own",
    ),
)


def list_ignored(options: CompileOptions, given: Set[str], rows: Sequence[Row] = ROWS) -> tuple[str, ...]:
    """One line for each of the options named in `given` that has no effect."""
    return tuple(
        f"{row.option}={getattr(options, row.option)!r} has no effect: {row.why.format(o=options)}"
        for row in rows
        if row.option in given and row.is_asked(options) and row.is_idle(options)
    )
