"""Linear algebra of complex matrices beside eager, in the first call of a compiled graph and the next ones.

torch 2.13 makes the first call in a dispatch mode, without lazy conjugation: see
`torch_compat/first_calls.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, linalg

from coilwork.backend import backend


def of_one_matrix(a: Tensor) -> tuple[Tensor, ...]:
    h = a @ a.mH + 4 * torch.eye(a.shape[-1], dtype=a.dtype)
    factor = linalg.cholesky(h)
    lu, pivots = linalg.lu_factor(a)
    q, r = linalg.qr(a)
    u, s, vh = linalg.svd(a)
    return (
        linalg.pinv(a),
        linalg.pinv(h, hermitian=True),
        linalg.pinv(a, rtol=0.1),
        linalg.pinv(a.mH, atol=torch.tensor(0.1, dtype=s.dtype)),
        linalg.pinv(a).mH @ a,
        linalg.inv(a.mH),
        linalg.matrix_power(a, -2),
        linalg.matrix_power(a.conj(), 3),
        linalg.matrix_exp(a.mH),
        linalg.multi_dot([a.mH, a, a.conj(), a.mT]),
        linalg.solve(a.mH, a),
        linalg.solve(a, a.conj(), left=False),
        linalg.solve_triangular(factor.mH, a, upper=True),
        linalg.lu_solve(lu, pivots, a.conj(), adjoint=True),
        torch.cholesky_solve(a.conj(), factor.mH, upper=True),
        torch.cholesky_inverse(factor),
        linalg.tensorinv(a.reshape(2, 2, 4), ind=2),
        linalg.eigvalsh(h),
        linalg.det(a.mH),
        q @ r,
        (u * s) @ vh,
        torch.fft.irfft(a.conj()),
        torch.fft.ifft(a.mH),
        torch.vdot(a[0], a[1].conj()),
    )


def compile_strictly(function: Callable[..., object]) -> Callable[..., object]:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, options={"strict": True})


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_matrices(dtype: torch.dtype) -> None:
    def function(a: Tensor) -> tuple[Tensor, ...]:
        return tuple(2 * one for one in of_one_matrix(a))

    a = torch.randn(4, 4, dtype=dtype, generator=torch.Generator().manual_seed(8))
    a += 3 * torch.eye(4)
    compiled, wanted = compile_strictly(function), function(a)
    for _ in range(2):
        for number, (found, right) in enumerate(zip(compiled(a), wanted, strict=True)):
            torch.testing.assert_close(
                found, right, rtol=1e-3 if dtype == torch.complex64 else 1e-9, atol=1e-3, msg=str(number)
            )


def test_least_squares() -> None:
    """A graph of their own, as the number of residuals comes from data."""
    a = torch.randn(4, 4, dtype=torch.complex128, generator=torch.Generator().manual_seed(8))
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found = compile_strictly(lambda a: linalg.lstsq(a.mH, a).solution * 2)(a)
    torch.testing.assert_close(found, linalg.lstsq(a.mH, a).solution * 2)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_gradients_of_complex_matrices(dtype: torch.dtype) -> None:
    def function(a: Tensor) -> Tensor:
        factor = linalg.cholesky(a @ a.mH + 4 * torch.eye(a.shape[-1], dtype=a.dtype))
        terms = (
            linalg.pinv(a) * 2,
            linalg.pinv(a @ a.mH, hermitian=True),
            linalg.solve(a.mH, a.conj()),
            torch.cholesky_solve(a, factor),
            linalg.solve_triangular(factor.mH, a, upper=True),
            linalg.matrix_power(a.mH, 3),
            linalg.multi_dot([a.mH, a, a.conj()]),
        )
        return torch.stack([(term * term).sum().real + term.sum().imag for term in terms])

    base = torch.randn(4, 4, dtype=dtype, generator=torch.Generator().manual_seed(8)) + 3 * torch.eye(4)
    compiled = compile_strictly(function)
    gradients, values = [], []
    for call in (function, compiled, compiled):
        a = base.clone().requires_grad_()
        result = call(a)
        assert isinstance(result, Tensor)
        values.append(result.detach())
        gradients.append(torch.autograd.grad(result.sum(), a)[0])
    tolerance = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.complex64 else {"rtol": 1e-9, "atol": 1e-9}
    for value, gradient in zip(values[1:], gradients[1:], strict=True):
        torch.testing.assert_close(value, values[0], **tolerance)
        torch.testing.assert_close(gradient, gradients[0], **tolerance)


def test_custom_operators_are_looked_at_in_the_first_call_still() -> None:
    library = torch.library.Library("coilwork_first_calls", "FRAGMENT")
    library.define("same(Tensor x) -> Tensor")
    library.impl("same", lambda x: x.view_as(x), "CompositeExplicitAutograd")
    torch.library.register_fake("coilwork_first_calls::same", torch.empty_like, lib=library)
    same = torch.ops.coilwork_first_calls.same

    compiled = compile_strictly(lambda a: linalg.pinv(same(a)) * 2)
    a = torch.randn(4, 4, dtype=torch.complex128, generator=torch.Generator().manual_seed(8))
    with (
        warnings.catch_warnings(record=True) as caught,
        torch._functorch.config.patch(error_on_custom_op_aliasing=False),
    ):
        warnings.simplefilter("always")
        found = compiled(a)
    torch.testing.assert_close(found, linalg.pinv(a) * 2)
    if hasattr(torch._functorch.config, "check_custom_op_aliasing"):
        assert any("alias" in str(one.message) for one in caught)
