"""The first call of a compiled graph, and calls that go around AOTAutograd's wrapper."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, linalg
from torch.testing._internal.two_tensor import TwoTensor

from coilwork.backend import backend
from coilwork.backend import backend as coilwork_backend
from coilwork_runtime import LayoutError


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
def test_functions_of_complex_matrices_are_those_of_eager(dtype: torch.dtype) -> None:
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


def test_least_squares_of_complex_matrices_are_those_of_eager() -> None:
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


if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)


def compile_and_note(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], list[str]]:
    """The compiled function, and a list that gets the type of the callable for each of its graphs."""
    torch._dynamo.reset()
    kinds: list[str] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        made = coilwork_backend(gm, example_inputs, options={"strict": True})
        kinds.append(type(made).__name__)
        return made

    compiled: Callable[..., Any] = torch.compile(function, backend=backend, **options)
    return compiled, kinds


def scaled(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


def view_of_an_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x.view(-1)


def overwriting(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def test_a_plain_graph() -> None:
    compiled, kinds = compile_and_note(scaled)
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), scaled(x))
    assert kinds == ["Program"]


def test_subclasses_are_taken_apart_and_put_together() -> None:
    """As inputs, and as results that are made of plain ones: the compiled graph sees their parts alone."""
    pair = TwoTensor(torch.randn(3, 4), torch.randn(3, 4))
    compiled, kinds = compile_and_note(scaled)
    torch.testing.assert_close(compiled(pair).b, scaled(pair.b))

    compiled, more = compile_and_note(lambda a, b: TwoTensor(a * 2, b))
    found = compiled(pair.a, pair.b)
    assert isinstance(found, TwoTensor)
    torch.testing.assert_close(found.a, pair.a * 2)
    assert kinds == more == ["function"]


@pytest.mark.parametrize("function", [view_of_an_input, overwriting])
def test_what_the_wrapper_is_needed_for(function: Callable[..., Any]) -> None:
    compiled, kinds = compile_and_note(function)
    ours, theirs = torch.arange(6.0), torch.arange(6.0)
    torch.testing.assert_close(compiled(ours), function(theirs))
    torch.testing.assert_close(ours, theirs)
    assert "Program" not in kinds


def test_sizes_that_change_go_through_the_wrapper() -> None:
    compiled, kinds = compile_and_note(scaled, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), scaled(x))
    assert kinds == ["function"]


def test_training_goes_through_the_wrapper() -> None:
    compiled, kinds = compile_and_note(scaled)
    x = torch.randn(3, requires_grad=True)
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 / torch.cosh(x.detach()) ** 2)
    assert kinds == ["function"]


def test_inputs_that_ask_for_gradients_where_none_are_recorded() -> None:
    compiled, kinds = compile_and_note(scaled)
    x = torch.nn.Parameter(torch.randn(3))
    with torch.no_grad():
        result = compiled(x)
    assert not result.requires_grad and kinds == ["Program"]
    assert torch.is_grad_enabled()


def test_autocast_goes_through_the_wrapper() -> None:
    compiled, kinds = compile_and_note(lambda x: x @ x)
    x = torch.randn(4, 4)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(x).dtype is torch.bfloat16
    assert kinds == ["function"]


def test_one_tensor_given_twice() -> None:
    compiled, _ = compile_and_note(lambda x, y: x * 2 + y)
    x, y = torch.randn(4), torch.randn(4)
    torch.testing.assert_close(compiled(x, x), x * 3)
    torch.testing.assert_close(compiled(x, y), x * 2 + y)


def test_a_wrong_input_is_refused_with_the_instruction() -> None:
    graphs: list[Callable[..., Any]] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(coilwork_backend(gm, example_inputs, options={"strict": True}))
        return graphs[-1]

    torch._dynamo.reset()
    torch.compile(scaled, backend=backend)(torch.randn(3))
    with pytest.raises(LayoutError):
        graphs[0](torch.randn(4))
    with pytest.raises(ValueError, match="not enough values"):
        graphs[0]()
    torch.testing.assert_close(graphs[0](torch.zeros(3))[0], torch.zeros(3))
