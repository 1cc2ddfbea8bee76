"""Symbols of sizes that no input tells by itself, told by the inputs whose sizes are made of them.

Torch traces a graph that reads a number from data twice, and names the number anew each time. The gradients
that reach its backward graph have sizes of the first name, say `u0 + 3`, while the graph is handed the number
as `u1`: `u0` is no input and no input's size. A size that is made of such a symbol gets a symbol of its own,
`t`, and where torch writes `u0` the table writes `t - 3`. The same is done for a term in which the symbol
occurs, `u0 % 4` in `6 - u0 % 4`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import torch

from coilwork_lowering.torch_compat.sizes import floor_divided, plain_integer, sympy_of

if TYPE_CHECKING:
    import sympy


def solved_terms(gm: torch.fx.GraphModule) -> dict[sympy.Basic, sympy.Basic]:
    """Return what stands for a number that no input tells by itself -> the number, from a new symbol, which a
    size of an input is.
    """
    sizes = list(_given_sizes(gm))
    told = {size for _, size in sizes if size.is_Symbol}
    found: dict[sympy.Basic, sympy.Basic] = {}
    for name, size in sizes:
        known = size.xreplace(found)
        if not known.free_symbols <= told:
            whole = plain_integer(name)
            told.add(whole)
            found.update({size: whole, **solved_by(known, whole, known.free_symbols - told)})
    return found


def solved_by(
    size: sympy.Basic, whole: sympy.Symbol, unknown: Collection[sympy.Basic]
) -> dict[sympy.Basic, sympy.Basic]:
    """Return what a size tells of `unknown` symbols in it, where it is `whole`: terms, and what they are."""
    carrying = [term for term in size.as_ordered_terms() if not term.free_symbols.isdisjoint(unknown)]
    factor, term = min((one.as_coeff_Mul() for one in carrying), key=_simpler)
    multiple = whole - (size - factor * term)
    if factor in (1, -1):
        return {term: factor * multiple}
    # the quotient leaves no rest, which nothing knows that sees it
    return {size: whole, term: floor_divided(multiple, factor)}


def _simpler(product: tuple[sympy.Basic, sympy.Basic]) -> tuple[bool, bool, str]:
    factor, term = product
    return (factor not in (1, -1), not term.is_Symbol, str(term))


def _given_sizes(gm: torch.fx.GraphModule) -> Iterator[tuple[str, sympy.Basic]]:
    """The symbolic integers among the inputs of `gm`, and in the shapes and strides of its tensors, each with
    a name for it.
    """
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            yield node.name, sympy_of(value)
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            continue
        layout: tuple[tuple[str, tuple[Any, ...]], ...] = (("size", value.shape), ("stride", value.stride()))
        for what, numbers in layout:
            for dim, number in enumerate(numbers):
                if isinstance(number, torch.SymInt):
                    yield f"{what}{dim}_of_{node.name}", sympy_of(number)
