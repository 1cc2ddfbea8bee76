"""Errors of lowering. Codes are stable; the README lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coilwork_ir.errors import CoilworkIRError

if TYPE_CHECKING:
    import torch

    from coilwork_ir.loc import Origin


class LoweringError(CoilworkIRError):
    """A captured graph cannot become loop IR. The usual answer of the caller is to run that graph in eager
    mode.

    Codes: `no-lowering`, `dtype`, `layout`, `symbol`, `argument`, `graph-form`, `index-range`; `rule-failed`
    for a fault of a rule, of whose node a call of ATen may be made.
    """


class MistracedError(LoweringError):
    """A captured graph does not say what the program does: it must run as it was before ATen operators were
    made of it.

    Code: `mistraced`.
    """


def make_refusal(
    node: torch.fx.Node, code: str, what: str, *, origins: tuple[Origin, ...], reason: str = ""
) -> LoweringError:
    """Return the error for `node`, which has no place in the loop IR."""
    return LoweringError(
        code,
        what,
        node=node.format_node() or node.name,
        origins=origins,
        reason=reason,
        remedy="run this graph in eager mode, or keep the call out with torch.compiler.disable",
    )
