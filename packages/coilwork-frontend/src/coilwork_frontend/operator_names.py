"""Operators and rewrites that options name: a name that means nothing would leave everything as it is,
unnoticed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import torch

from coilwork_frontend.errors import OptionError
from coilwork_frontend.options import suggest


def check_fallback(names: Sequence[str], lowered: Iterable[str]) -> None:
    """Refuse operators of ATen that torch does not have, and names without a namespace; other libraries may
    be loaded later.

    `lowered` are the overloads that are compiled.

    Raises:
        OptionError: names the operator, and the nearest one that is lowered.
    """
    for name in names:
        namespace, _, rest = name.partition(".")
        if not rest or (namespace == "aten" and not _exists(rest)):
            known = sorted({target.rpartition(".")[0] for target in lowered})
            near = difflib.get_close_matches(name if rest else f"aten.{name}", known, n=1)
            raise OptionError(
                "bad-option",
                f"fallback: there is no operator {name!r}",
                remedy=f"did you mean {near[0]!r}?"
                if near
                else "write it as in aten.cumsum or aten.sum.dim_IntList",
            )


def _exists(name: str) -> bool:
    """Tell whether ATen has the operator, or overload, `name`."""
    packet, _, overload = name.partition(".")
    return hasattr(torch.ops.aten, packet) and (
        not overload or hasattr(getattr(torch.ops.aten, packet), overload)
    )


def check_rewrites(names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names of rewrites that are not `known`.

    Raises:
        OptionError: there is no rewrite of a name; the message names the nearest known one.
    """
    there = tuple(known)
    for name in names:
        if name not in there:
            raise OptionError("unknown-rewrite", f"there is no rewrite {name!r}", remedy=suggest(name, there))
