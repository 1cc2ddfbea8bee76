"""Prims called by name become ATen's operators and give what they give eagerly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions
from coilwork_lowering.decompositions.prims import prim_decompositions

prims = torch.ops.prims
CPU = torch.device("cpu")
X = torch.tensor([[0.3, -1.5, 2.0], [-0.0, 0.75, -4.0]])
Y = torch.tensor([[2.0, 0.5, -1.0], [3.0, 0.25, 1.5]])
M = torch.tensor([[6, -4, 0], [9, 15, -7]])
N = torch.tensor([[4, 3, 2], [6, 1, 5]])

OF_FLOATS = (
    "abs asin asinh atan atanh bessel_i0 bessel_i0e bessel_i1 bessel_i1e bessel_j0 bessel_j1 cbrt ceil "
    "clone cos cosh "
    "digamma erf erf_inv erfc erfcx exp exp2 expm1 floor isfinite lgamma neg reciprocal round sign "
    "signbit sin sinh spherical_bessel_j0 "
    "tan tanh trunc frexp"
)
OF_POSITIVE = "acos acosh log log10 log1p log2 rsqrt sqrt ndtri"
OF_TWO = "add sub mul div atan2 eq ne ge gt le lt fmax fmin fmod hypot maximum minimum nextafter remainder"
OF_INTEGERS = (
    "add sub mul div eq bitwise_and bitwise_or bitwise_xor gcd maximum minimum fmod remainder shift_left "
    "shift_right_arithmetic"
)


def call_prim(name: str, *arguments: Any) -> Any:
    """The result of the prim of that name."""
    return getattr(prims, name)(*arguments)


CASES: dict[str, Callable[[], Any]] = {
    **{name: partial(call_prim, name, X) for name in OF_FLOATS.split()},
    **{f"{name} of positive": partial(call_prim, name, Y.abs() / 4) for name in OF_POSITIVE.split()},
    **{f"{name} of two": partial(call_prim, name, X, Y) for name in OF_TWO.split()},
    **{f"{name} of integers": partial(call_prim, name, M, N) for name in OF_INTEGERS.split()},
    **{name: partial(call_prim, name, Y.abs(), X.abs() + 1) for name in ("pow", "igamma", "igammac")},
    "zeta": lambda: prims.zeta(Y.abs() + 2, X.abs() + 1),
    "bitwise_not": lambda: prims.bitwise_not(M),
    "where": lambda: prims.where(X > 0, X, Y),
    "fill": lambda: prims.fill(X, 2),
    "cat": lambda: prims.cat([X, Y], 1),
    "conj": lambda: prims.conj(torch.complex(X, Y)).resolve_conj(),
    "conj_physical": lambda: prims.conj_physical(torch.complex(X, Y)),
    "real": lambda: prims.real(torch.complex(X, Y)),
    "imag": lambda: prims.imag(torch.complex(X, Y)),
    "rev": lambda: prims.rev(X, [0, 1]),
    "transpose": lambda: prims.transpose(X, [1, 0]),
    "squeeze": lambda: prims.squeeze(X[None, :, None], [0, 2]),
    "view_of_dtype": lambda: prims.view_of_dtype(X, torch.int32),
    "broadcast_in_dim": lambda: prims.broadcast_in_dim(X, [4, 2, 5, 3], [1, 3]),
    "collapse": lambda: prims.collapse(torch.arange(24).view(2, 3, 4).transpose(0, 1), 0, 1),
    "collapse_view": lambda: prims.collapse_view(torch.arange(24).view(2, 3, 4), 1, 2),
    "split_dim": lambda: prims.split_dim(torch.arange(24).view(2, 12), 1, 3),
    "reshape": lambda: prims.reshape(X.t(), [2, 3]),
    "copy_strided": lambda: prims.copy_strided(X, [1, 2]),
    "device_put": lambda: prims.device_put(X, CPU),
    **{
        f"{name} over {dims}": partial(call_prim, name, X, dims, *((1,) if name == "var" else ()))
        for name in ("amax", "amin", "sum", "var", "prod")
        for dims in ([0], [0, 1], [1])
    },
    "full": lambda: prims.full([2, 3], 1.5, dtype=torch.float32, device=CPU, requires_grad=False),
    "full_like": lambda: prims.full_like(X, 2, dtype=torch.int64, device=CPU, requires_grad=False),
    "scalar_tensor": lambda: prims.scalar_tensor(3, dtype=torch.float64, device=CPU),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_prims_are_as_eager(case: str) -> None:
    expected = CASES[case]()
    gm = make_fx(lambda: CASES[case](), decomposition_table=decompositions())()
    called = {str(node.target) for node in gm.graph.nodes if node.op == "call_function"}
    assert not any(one.startswith("prims.") for one in called if "convert_element_type" not in one), called
    found = gm()
    for got, wanted in zip(_tensors(found), _tensors(expected), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)
        assert got.stride() == wanted.stride()


def test_every_prim_of_the_table_is_tried() -> None:
    tried = {case.partition(" ")[0] for case in CASES}
    table = {op.name().removeprefix("prims::") for op in prim_decompositions()}
    # what lies in memory that nobody wrote to is no result; positions in a storage are of no use to a graph
    # of constants
    assert table - tried == {"empty", "empty_permuted", "as_strided", "as_strided_scatter"}


def _tensors(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, tuple) else [value]
