"""Torch's core ATen operators and its prims, each with what becomes of a call: the second table of
docs/coverage.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch._prims

from coilwork_lowering import decompositions
from coilwork_lowering.ops import contractions
from coilwork_lowering.registry import RULES
from coilwork_lowering.torch_compat.operators import Overload

CORE_TITLE: Final = "## Core ATen and prims"
HEADER: Final = """
{title}

Every overload that torch tags `core` ({core}), and every one of `torch.ops.prims` ({prims}), by what the
compiler does with a call:

- *generated*: a lowering makes it kernels or a view;
- *taken apart*: into operators that have lowerings;
- *ATen*: called inside the compiled program.

A lowering or a decomposition may leave some arguments (complex numbers, for one) to ATen; the table above
shows where samples do.

"""
# Why those that are called are.
REASONS: Final = {
    "products and convolutions, by ATen or by templates, as is measured to be faster": (
        "aten.mm aten.bmm aten.addmm aten.convolution aten.convolution_backward"
    ),
    "transforms and factorisations by libraries": (
        "aten._fft_c2r aten._fft_r2c prims.fft_c2c prims.fft_c2r prims.fft_r2c prims.svd"
    ),
    "results that are numbers or whose size depends on data": (
        "aten._local_scalar_dense aten.nonzero prims.item prims.maximum_value prims.minimum_value"
    ),
    "random numbers, whose generator is eager's": "aten.randperm prims.normal prims.uniform",
    "tokens, writes to operands and results in given memory, which tracing takes apart": (
        "prims._make_token prims._sink_tokens prims.copy_to prims.resize aten.resize_ aten.atan2.out"
    ),
    "eager has no kernel to be compared with": "prims.xor_sum",
}
# Their decompositions only bring dimensions into the order in which ATen's kernels take them.
ORDERED: Final = ("aten._fft_r2c.default",)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreOperator:
    """An overload by its qualified name, and a word for what becomes of it."""

    name: str
    kind: str

    @property
    def reason(self) -> str | None:
        """Why it is called; None if nobody has said so."""
        packet = self.name.rpartition(".")[0]
        for reason, names in REASONS.items():
            if {self.name, packet} & set(names.split()):
                return reason
        return None


def core_operators() -> list[CoreOperator]:
    """Every overload that is tagged core or a prim, by name."""
    table = decompositions()
    return [
        CoreOperator(name=_name(overload), kind=_kind(overload, table))
        for namespace, tagged in ((torch.ops.aten, True), (torch.ops.prims, False))
        for overload in _overloads(namespace)
        if (torch.Tag.core in overload.tags if tagged else _is_torchs(overload))
    ]


def core_section() -> str:
    """The part of the page."""
    found = core_operators()
    spaces = [[one for one in found if one.name.startswith(space)] for space in ("aten.", "prims.")]
    kinds = ("generated", "taken apart", "ATen")
    lines = [HEADER.format(title=CORE_TITLE, core=len(spaces[0]), prims=len(spaces[1]))]
    lines += ["| | " + " | ".join(kinds) + " |\n", "|---|" + "---:|" * len(kinds) + "\n"]
    for label, space in zip(("core", "prims"), spaces, strict=True):
        counts = (sum(one.kind == kind for one in space) for kind in kinds)
        lines.append(f"| {label} | " + " | ".join(map(str, counts)) + " |\n")
    lines += ["\n| called | why |\n", "|---|---|\n"]
    for one in found:
        if one.kind == "ATen":
            lines.append(f"| `{one.name.removesuffix('.default')}` | {one.reason or 'not yet lowered'} |\n")
    return "".join(lines)


def _overloads(namespace: Any) -> Iterator[Overload]:
    """All that are registered; an attribute of the namespace is there only when somebody has asked for it."""
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        space, _, name = qualified.partition("::")
        if space == namespace.name:
            packet, _, overload = name.partition(".")
            yield getattr(getattr(namespace, packet), overload or "default")


def _is_torchs(prim: Overload) -> bool:
    """Whether it is one of `torch._prims`; other parts of torch add to the namespace as they are imported."""
    return any(one is prim for one in vars(torch._prims).values())


def _name(overload: Overload) -> str:
    return str(overload)


def _kind(overload: Overload, table: dict[Any, Any]) -> str:
    rule = RULES.get(_name(overload))
    if rule in contractions.RULES:
        # nodes of the graph, of which the scheduler decides who computes them: where it pays, kernels do
        return "ATen"
    if rule is not None:
        return "generated"
    if (overload in table and _name(overload) not in ORDERED) or overload._can_decompose():
        return "taken apart"
    return "ATen"
