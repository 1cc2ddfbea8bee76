"""Results of operators that torch marks as negated or conjugated, and the calls that make memory hold them.

torch's own operators tell at compile time which results are marked. Others may return a marked one where
their meta functions are silent, and kernels do not look at marks. Each driver therefore makes these calls
behind such an operator, which copy what is marked and give back the rest as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.program.nodes import ExternCall

# Their results are known, or are not there yet.
_KNOWN: Final = frozenset(
    ("aten", "prims", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d")
)


def list_resolving_calls(call: ExternCall) -> Iterator[ExternCall]:
    """The calls that replace each result of `call` that may be marked by a tensor as memory is to hold it."""
    if call.target.partition(".")[0] in _KNOWN or call.in_flight:
        return
    for output in call.outputs:
        if isinstance(output, Buffer) and (output.dtype.is_float or output.dtype.is_complex):
            for mark in ("conj", "neg") if output.dtype.is_complex else ("neg",):
                yield ExternCall(
                    target=f"aten.resolve_{mark}.default",
                    args=(Ref(output.name),),
                    outputs=(output,),
                    origins=call.origins,
                )
