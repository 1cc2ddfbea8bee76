"""A rewrite: what to look for, what to put in its place, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import fx

from coilwork_ir.machine import FindModel, find_like_model
from coilwork_lowering.rewrites.condition import Condition
from coilwork_lowering.rewrites.match import Match
from coilwork_lowering.rewrites.pattern import Pattern, roots_of

Level = Literal["captured", "aten", "frozen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """One pair of pattern and replacement.

    Attributes:
        name: what reports and the option `skip_rewrites` call it.
        doc: one sentence: what it does and why that pays.
        pattern: what to look for; its outermost calls are what is replaced.
        replacement: an ordinary function of what the pattern captured, by name. Nodes come as proxies, whose
            `value` is their fake tensor; the others as they are, and names that the match did not capture as
            `None`. It returns what takes the root's place: one proxy, or for a root of several results a list
            of them, `None` for those that nobody reads. `None` instead of a proxy refuses the match. Or there
            is none, but `existing`.
        conditions: all must hold.
        existing: instead of a replacement, which captured node takes the root's place. It spares a proxy for
            each of many.
        also: further roots, which share captures with `pattern`; the replacement then returns one result per
            root.
        level: `captured` graphs hold the user's own calls, before autograd; `aten` graphs are functional:
            joint graphs before their partition, and inference graphs. `frozen` ones are inference graphs
            whose parameters are taken for constant.
        inexact: results may round otherwise than the captured calls; such a rewrite needs numerics `fast`.
        random: the replacement draws its random numbers in another way.
        restrides: the result's strides may differ, because the conditions see to it that nobody cares.
        find_model: what is measured of a device, for conditions that ask what pays there.
        uuid: of rewrites that users add: changes whenever they change. Empty: what is compiled is not cached.
    """

    name: str
    doc: str
    pattern: Pattern
    replacement: Callable[..., Any] | None = None
    conditions: tuple[Condition, ...] = ()
    existing: Callable[[Match], fx.Node] | None = None
    also: tuple[Pattern, ...] = ()
    level: Level = "aten"
    inexact: bool = False
    random: bool = False
    restrides: bool = False
    find_model: FindModel = field(default=find_like_model, repr=False, compare=False)
    uuid: str = ""

    def __post_init__(self) -> None:
        if not self.name or any(not tuple(roots_of(root)) for root in (self.pattern, *self.also)):
            raise ValueError(f"rewrite {self.name!r} needs a name, and calls as the roots of its patterns")
        if (self.replacement is None) is (self.existing is None):
            raise ValueError(f"rewrite {self.name!r} needs either a replacement or an existing node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """What one rewrite did to one graph.

    Attributes:
        name: the rewrite.
        level: the kind of graph.
        count: how many matches it replaced.
        sources: places in the user's code, `file:line`, of what was replaced; each once.
    """

    name: str
    level: str
    count: int
    sources: tuple[str, ...]
