"""Negated and conjugated tensors, as inputs, results and within a graph, beside eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import pytest
import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch.utils import _pytree as pytree

from coilwork.backend import backend

Compile = Callable[..., Callable[..., Any]]


def conjugate() -> Tensor:
    return torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)).conj()


def added_in_place(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def added_to_a_row(x: Tensor) -> Tensor:
    x[1].add_(x[0])
    return x


READING: dict[str, Callable[[Tensor], object]] = {
    "pointwise": lambda x: x * 2,
    "sum": lambda x: x.sum(),
    "copies": lambda x: (x.clone(), x.contiguous(), torch.cat([x, x]), x.resolve_neg()),
    "call": lambda x: torch.mm(x, x.t()),
    "view": lambda x: x[1:].flatten() + 1,
    "written": added_in_place,
    "written in part": added_to_a_row,
}


@pytest.mark.parametrize("name", READING)
def test_marked_inputs_are_read_as_eager_reads_them(name: str, strictly: Compile) -> None:
    torch._dynamo.reset()
    function = READING[name]
    compiled = strictly(function)
    eager, ours = conjugate().imag, conjugate().imag
    torch.testing.assert_close(compiled(ours), function(eager))
    torch.testing.assert_close(ours, eager)
    assert ours.is_neg()


def test_beside_plain_inputs(strictly: Compile) -> None:
    torch._dynamo.reset()
    compiled = strictly(lambda x: x - 1)
    for x in (conjugate().real, conjugate().imag, conjugate().t().imag, conjugate()[1:].imag):
        torch.testing.assert_close(compiled(x), x - 1)


def test_copies_have_the_inputs_layout(strictly: Compile) -> None:
    torch._dynamo.reset()
    inner = conjugate().t()[1:].imag
    torch.testing.assert_close(strictly(lambda x: (x.stride(), x + 1))(inner), (inner.stride(), inner + 1))


def reads_both(z: Tensor) -> tuple[Tensor, Tensor]:
    return z.conj().imag * 2, z.conj().real + 1


def writes_a_negated_view(z: Tensor) -> tuple[Tensor, Tensor]:
    y = z.conj()
    y.imag.mul_(3)
    return z, y[0].imag + z.real[1]


def writes_and_returns_it(z: Tensor) -> tuple[Tensor, Tensor]:
    y = z.conj().imag
    y.add_(1)
    return y, z


@pytest.mark.parametrize("function", [reads_both, writes_a_negated_view, writes_and_returns_it])
def test_within_a_graph(function: Callable[[Tensor], object], strictly: Compile) -> None:
    torch._dynamo.reset()
    eager, ours = conjugate().resolve_conj(), conjugate().resolve_conj()
    torch.testing.assert_close(strictly(function)(ours), function(eager))
    torch.testing.assert_close(ours, eager)


def test_conjugates_that_are_negated_too(strictly: Compile) -> None:
    """The program takes the conjugate into account, and its memory holds numbers of the other sign."""

    def scaled(z: Tensor) -> Tensor:
        return z * 2 + 1

    def written(z: Tensor) -> Tensor:
        z.add_(1)
        return z * 2

    for function in (scaled, written):
        torch._dynamo.reset()
        eager, ours = (torch._neg_view(conjugate().resolve_conj()).conj() for _ in range(2))
        torch.testing.assert_close(strictly(function)(ours), function(eager))
        torch.testing.assert_close(ours, eager)
        assert ours.is_conj() and ours.is_neg()


def test_gradients_of_marked_values_are_those_of_eager(strictly: Compile) -> None:
    torch._dynamo.reset()

    def function(z: Tensor) -> Tensor:
        return (z.conj().imag.exp() * z.real).sum()

    z = conjugate().resolve_conj().requires_grad_()
    (ours,) = torch.autograd.grad(strictly(function)(z), z)
    (eager,) = torch.autograd.grad(function(z), z)
    torch.testing.assert_close(ours, eager)


def test_returned_copies_are_no_views(strictly: Compile) -> None:
    torch._dynamo.reset()

    def function(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (z * 2).conj().resolve_conj(), (z * 3).conj().clone(), (z * 4).conj()

    z = conjugate().resolve_conj()
    for ours, eager in zip(strictly(function)(z), function(z), strict=True):
        torch.testing.assert_close(ours, eager)
        assert ours.is_conj() == eager.is_conj()


RETURNING: dict[str, Callable[[Tensor], Any]] = {
    "imaginary part": lambda z: (z * 2).conj().imag,
    "of real numbers": lambda z: torch.ops.aten._neg_view(z.real * 2),
    "views of it": lambda z: ((z * 2).conj().imag.t(), (z * 2).conj().imag[1:].flatten()),
    "beside its memory": lambda z: [(y := (z * 2).conj()), y.imag, y.real, y.imag[0]],
    "of the input": lambda z: (z.conj().imag, z.conj().imag.t()),
    "twice": lambda z: torch.ops.aten._neg_view((z * 2).conj().imag),
    "and read": lambda z: ((y := (z * 2).conj().imag), y.exp()),
    "and not": lambda z: ((z * 2).conj().imag, z.conj().imag + 1, (z * 2).conj().imag.resolve_neg()),
}


@pytest.mark.parametrize("name", RETURNING)
@pytest.mark.parametrize("gradients", [False, True])
def test_returned_values_keep_their_marks_and_strides(name: str, gradients: bool, strictly: Compile) -> None:
    torch._dynamo.reset()
    z = conjugate().resolve_conj().requires_grad_(gradients)
    ours, eager = strictly(RETURNING[name])(z), RETURNING[name](z)
    pairs = [(ours, eager)] if isinstance(eager, Tensor) else zip(ours, eager, strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, check_stride=True)
        assert (one.is_neg(), one.is_conj()) == (other.is_neg(), other.is_conj())
        if gradients and not other.is_complex():
            found = [torch.autograd.grad(value.sum(), z, retain_graph=True)[0] for value in (one, other)]
            torch.testing.assert_close(found[0], found[1])


Program = Callable[[Tensor], Any]

DRIVERS: Final = ({}, {"executor": "python"}, {"wrapper": "fx"}, {"wrapper": "cpp"})
NAMES: Final = ("native", "python", "fx", "cpp")


def real(device: str = "cpu") -> Tensor:
    return torch.arange(1.0, 7.0, device=device).reshape(2, 3)


def number(device: str = "cpu") -> Tensor:
    return torch.complex(real(device), real(device) + 10)


@contextmanager
def marking_operators() -> Iterator[Any]:
    """Operators whose results are marked, which some of their meta functions say and some do not."""
    with torch.library._scoped_library("marked", "FRAGMENT") as library:
        library.define("negated(Tensor x) -> Tensor")
        library.define("negated_as_said(Tensor x) -> Tensor")
        library.define("conjugated(Tensor x) -> Tensor")
        library.define("conjugated_as_said(Tensor x) -> Tensor")
        library.define("imaginary(Tensor x) -> Tensor")
        library.define("several(Tensor x) -> Tensor[]")
        for name in ("negated", "negated_as_said"):
            library.impl(name, lambda x: torch._neg_view(x.clone()), "CompositeExplicitAutograd")
        for name in ("conjugated", "conjugated_as_said"):
            library.impl(name, lambda x: x.clone().conj(), "CompositeExplicitAutograd")
        library.impl("imaginary", lambda x: x.clone().conj().imag, "CompositeExplicitAutograd")
        library.impl(
            "several", lambda x: [torch._neg_view(x.clone()), x.clone()], "CompositeExplicitAutograd"
        )
        fakes: dict[str, Callable[[Tensor], object]] = {
            "negated": torch.empty_like,
            "negated_as_said": lambda x: torch._neg_view(torch.empty_like(x)),
            "conjugated": torch.empty_like,
            "conjugated_as_said": lambda x: torch.empty_like(x).conj(),
            "imaginary": lambda x: torch.empty_like(x).imag,
            "several": lambda x: [torch.empty_like(x), torch.empty_like(x)],
        }
        for name, fake in fakes.items():
            torch.library.register_fake(f"marked::{name}", fake, lib=library)
        gradients: dict[str, Callable[[Any, Tensor], Tensor]] = {
            "negated": lambda _, g: torch.ops.marked.negated(g),
            "negated_as_said": lambda _, g: torch.ops.marked.negated(g),
            "conjugated": lambda _, g: torch.ops.marked.conjugated(g),
        }
        for name, gradient in gradients.items():
            torch.library.register_autograd(f"marked::{name}", gradient, lib=library)
        yield torch.ops.marked


@pytest.fixture(autouse=True)
def several_backwards() -> Iterator[None]:
    """A graph may be gone through for several gradients."""
    with functorch_config.patch(donated_buffer=False):
        yield


@pytest.fixture
def marked() -> Iterator[Any]:
    with marking_operators() as operators:
        yield operators


def of_reals(marked: Any) -> Program:
    """Everything that kernels and operators may do with marked results of a real input."""

    def function(x: Tensor) -> list[Tensor]:
        y, said, (listed, other) = (
            marked.negated(x),
            marked.negated_as_said(x + 1),
            marked.several(x.detach()),
        )
        return [
            y * 2,
            y[1] + 1,
            y @ x.t(),
            torch.cat([y, x]).exp(),
            said * 2,
            said.view(-1) + y.view(-1),
            listed * 3 + other,
            y,
            said,
            (marked.negated(x * 2) + 1).sum(),
            torch._neg_view(x + 1) * 2,
            torch._neg_view(marked.negated(x)).sin(),
        ]

    return function


def of_numbers(marked: Any) -> Program:
    """The same of a complex input."""

    def function(z: Tensor) -> list[Tensor]:
        y = marked.conjugated(z)
        said = marked.conjugated_as_said(z.detach())
        return [
            torch.view_as_real(y.resolve_conj()) * 2,
            y.imag * 2 + 1,
            y * (1 + 2j),
            y.abs(),
            y,
            said,
            said.imag * 2,
            said * 2,
            marked.imaginary(z.detach()) * 2,
            (z * 2).conj().imag * 3,
            z.conj().real + z.conj().imag,
        ]

    return function


def plain(value: Tensor) -> Tensor:
    return value.detach().resolve_conj().resolve_neg()


def cotangents(result: Tensor) -> list[Tensor]:
    """Gradients for `result`, marked and not."""
    base = torch.arange(1.0, 1.0 + result.numel(), device=result.device).reshape(result.shape)
    z = torch.complex(base, base + 3)
    return [z, z.conj()] if result.is_complex() else [base, z.conj().imag]


def check(function: Program, compiled: Program, make: Callable[[], Tensor], *, gradients: bool) -> None:
    ours_in, eager_in = make(), make()
    if gradients:
        ours_in, eager_in = ours_in.requires_grad_(), eager_in.requires_grad_()
    ours, eager = pytree.tree_leaves(compiled(ours_in)), pytree.tree_leaves(function(eager_in))
    for one, other in zip(ours, eager, strict=True):
        torch.testing.assert_close(plain(one), plain(other))
    torch.testing.assert_close(plain(ours_in), plain(eager_in))
    for one, other in zip(ours, eager, strict=True):
        assert one.requires_grad == other.requires_grad
        for given in cotangents(other) if other.requires_grad else ():
            found = torch.autograd.grad(one, ours_in, given, retain_graph=True)
            expected = torch.autograd.grad(other, eager_in, given, retain_graph=True)
            torch.testing.assert_close(plain(found[0]), plain(expected[0]))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("options", DRIVERS, ids=NAMES)
def test_results_of_operators_and_gradients(
    options: Mapping[str, object], gradients: bool, marked: Any, strictly: Compile, leniently: Compile
) -> None:
    check(of_reals(marked), strictly(of_reals(marked), **options), real, gradients=gradients)
    torch._dynamo.reset()
    # torch's C interface does not add complex numbers
    compiling = leniently if options == {"wrapper": "cpp"} else strictly
    check(of_numbers(marked), compiling(of_numbers(marked), **options), number, gradients=gradients)


@pytest.mark.parametrize("options", DRIVERS, ids=NAMES)
def test_results_keep_their_marks(options: Mapping[str, object], marked: Any, strictly: Compile) -> None:
    def function(x: Tensor) -> list[Tensor]:
        y, z, w = marked.negated(x), marked.negated(x + 1), marked.negated(x + 2)
        (listed, other), said = marked.several(x.detach()), marked.negated_as_said(x + 3)
        return [
            y,
            z,
            z * 2,
            z.t(),
            z[1] + 1,
            z.view(-1),
            w[0],
            w * 3,
            listed,
            other,
            said,
            w.detach().add_(1),
        ]

    compiled = strictly(function, **options)
    for gradients in (False, True):
        ours, eager = (called(real().requires_grad_(gradients)) for called in (compiled, function))
        for position, (one, other) in enumerate(zip(ours, eager, strict=True)):
            torch.testing.assert_close(plain(one), plain(other))
            # what was written to is one tensor, which kernels read
            if position not in (6, 7, 11):
                assert one.is_neg() == other.is_neg(), (gradients, position)
            assert (one.stride(), one.storage_offset()) == (other.stride(), other.storage_offset())


@pytest.mark.parametrize("options", DRIVERS[:3], ids=NAMES[:3])
def test_conjugates_keep_their_marks(options: Mapping[str, object], marked: Any, strictly: Compile) -> None:
    def function(z: Tensor) -> list[Tensor]:
        y = marked.conjugated(z)
        return [y, y.abs(), marked.conjugated(z * 2)]

    ours, eager = strictly(function, **options)(number()), function(number())
    for one, other in zip(ours, eager, strict=True):
        torch.testing.assert_close(plain(one), plain(other))
        assert one.is_conj() == other.is_conj()


def test_a_marked_result_that_is_saved_is_read_with_its_sign(marked: Any, strictly: Compile) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = marked.negated(x)
        return y, (y * y * x).sum()

    ours_in, eager_in = real().requires_grad_(), real().requires_grad_()
    (ours, loss), (eager, expected) = strictly(function)(ours_in), function(eager_in)
    assert ours.is_neg() and eager.is_neg()
    torch.testing.assert_close(
        torch.autograd.grad(loss, ours_in), torch.autograd.grad(expected, eager_in), check_stride=False
    )


def written_views(x: Tensor) -> list[tuple[Tensor, ...]]:
    """Groups that share memory: tensors, and negated views of them that were written to."""
    return [
        ((y := x + 1), torch._neg_view(y).add_(1)),
        (torch._neg_view(y := x + 2).mul_(2), y, y.t(), torch._neg_view(y)[0]),
        ((y := x + 3), torch._neg_view(y)[1].add_(5), y[0]),
        ((z := torch.complex(x, x + 4)), z.conj().imag.mul_(2)),
        (torch._neg_view(y := x + 5).t().add_(1),),
        (torch._neg_view(y := x + 6), y.add_(1)),
        (torch._neg_view(y := x + 7).add_(1), y, y.split(1)[1]),
        ((z := torch._neg_view(x + 8)).split(1)[1], z),
    ]


@pytest.mark.parametrize("gradients", [False, True])
def test_negated_views_that_were_written_to(gradients: bool, strictly: Compile) -> None:
    ours_in, eager_in = real().requires_grad_(gradients), real().requires_grad_(gradients)
    ours, eager = strictly(written_views)(ours_in), written_views(eager_in)
    losses = [torch.zeros(()), torch.zeros(())]
    for group, expected in zip(ours, eager, strict=True):
        for one, other in zip(group, expected, strict=True):
            torch.testing.assert_close(plain(one), plain(other))
            assert (one.is_neg(), one.is_conj()) == (other.is_neg(), other.is_conj())
            assert (one.stride(), one.storage_offset()) == (other.stride(), other.storage_offset())
            assert one.untyped_storage()._cdata == group[0].untyped_storage()._cdata
        losses[0], losses[1] = losses[0] + group[0].abs().sum(), losses[1] + expected[0].abs().sum()
    if gradients:
        found = torch.autograd.grad(losses[0], ours_in)[0]
        torch.testing.assert_close(plain(found), plain(torch.autograd.grad(losses[1], eager_in)[0]))


def conjugates(z: Tensor) -> list[tuple[Tensor, ...]]:
    """Groups that share memory: tensors, conjugates of them, and views of these, some of which were written
    to.
    """
    return [
        ((z * 2).mH[1:],),
        ((y := z * 3).conj(), y, y.conj()[:, 1:], y.mH),
        ((z * 4).conj().split(1)[1],),
        (torch._neg_view((z * 5).conj())[0],),
        ((y := z * 6).conj().add_(1), y),
        ((y := (z * 7).conj()).mul_(1j), y, y.t()),
        ((y := z * 8).mH[0].add_(2j), y),
        ((z * 9).conj().detach(),),
        ((y := z * 10).conj()[1:].conj(), y),
        (torch._neg_view((y := z * 11).conj()).add_(1), y),
    ]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("options", DRIVERS[:3], ids=NAMES[:3])
def test_conjugated_results_are_marked(
    options: Mapping[str, object], gradients: bool, strictly: Compile
) -> None:
    ours_in, eager_in = number().requires_grad_(gradients), number().requires_grad_(gradients)
    ours, eager = strictly(conjugates, **options)(ours_in), conjugates(eager_in)
    losses = [torch.zeros(()), torch.zeros(())]
    for place, (group, expected) in enumerate(zip(ours, eager, strict=True)):
        for one, other in zip(group, expected, strict=True):
            torch.testing.assert_close(plain(one), plain(other))
            assert (one.is_neg(), one.is_conj()) == (other.is_neg(), other.is_conj()), place
            assert (one.stride(), one.storage_offset()) == (other.stride(), other.storage_offset())
            assert one.untyped_storage()._cdata == group[0].untyped_storage()._cdata
            assert gradients or one._is_view() == other._is_view(), place
        losses[0], losses[1] = losses[0] + group[-1].abs().sum(), losses[1] + expected[-1].abs().sum()
    if gradients:
        found = torch.autograd.grad(losses[0], ours_in)[0]
        torch.testing.assert_close(plain(found), plain(torch.autograd.grad(losses[1], eager_in)[0]))


def test_results_of_open_sizes(marked: Any) -> None:
    compiled = torch.compile(of_reals(marked), backend=backend, dynamic=True, options={"strict": True})
    for rows in (2, 4):
        check(of_reals(marked), compiled, partial(torch.full, (rows, 3), 0.5), gradients=True)


INPUTS: Final[Mapping[str, tuple[Program, Callable[[], Tensor]]]] = MappingProxyType(
    {
        "negated": (lambda x: x * 2, lambda: number().conj().imag),
        "negated and overwritten": (lambda x: x.add_(1), lambda: number().conj().imag),
        "conjugated": (lambda z: (z.imag * 2, (z * 2).real, z.abs(), z * 2), lambda: number().conj()),
        "conjugated and overwritten": (lambda z: z.mul_(2j), lambda: number().conj()),
        "conjugated and overwritten in part": (lambda z: z.imag.mul_(2), lambda: number().conj()),
    }
)


@pytest.mark.parametrize("options", DRIVERS[:3], ids=NAMES[:3])
def test_programs_of_marked_inputs_are_those_of_eager(
    options: Mapping[str, object], strictly: Compile
) -> None:
    for name, (function, make) in INPUTS.items():
        torch._dynamo.reset()
        check(function, strictly(function, **options), make, gradients=False)
        if "overwritten" not in name:
            check(function, strictly(function, **options), make, gradients=True)


class Holder(torch.nn.Module):
    """A module whose tensors are marked."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("negated", number().conj().imag)
        self.register_buffer("conjugated", number().conj())
        self.weight = torch.nn.Parameter(number().conj().imag)
        self.numbers = torch.nn.Parameter(number().conj())
        self.attribute = number().conj().imag

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (
            x * self.negated + self.conjugated.imag,
            self.numbers.imag * self.weight + self.attribute + x,
            (x * self.conjugated).imag,
            (x * self.numbers).abs(),
        )


@pytest.mark.parametrize("options", DRIVERS[:3], ids=NAMES[:3])
def test_tensors_of_modules(options: Mapping[str, object], strictly: Compile) -> None:
    holder = Holder()
    check(holder, strictly(holder, **options), real, gradients=True)


def test_marked_tensors_of_a_frozen_module_are_those_of_eager(strictly: Compile) -> None:
    holder = Holder()
    with torch.no_grad():
        check(holder, strictly(holder, freezing=True), real, gradients=False)


def test_branches_and_loops(marked: Any, strictly: Compile) -> None:
    def chosen(x: Tensor) -> Tensor:
        found: Tensor = torch.cond(x.sum() > 0, lambda x: marked.negated(x), lambda x: x + 1, (x,))
        return found * 2

    def viewed(x: Tensor) -> Tensor:
        found: Tensor = torch.cond(x.sum() > 0, lambda x: torch._neg_view(x.clone()), lambda x: x + 1, (x,))
        return found * 2

    def given(x: Tensor) -> Tensor:
        found: Tensor = torch.cond(x.sum() < 0, lambda y: y * 2, lambda y: y + 1, (marked.negated(x),))
        return found

    def repeated(x: Tensor) -> Tensor:
        (found,) = torch._higher_order_ops.while_loop(
            lambda x: x.sum() > -100, lambda x: (marked.negated(x.abs()) * 2,), (x,)
        )
        result: Tensor = found + 1
        return result

    expected = {chosen: -2 * real(), viewed: -2 * real(), given: 1 - real(), repeated: None}
    for function, values in expected.items():
        torch._dynamo.reset()
        for options in DRIVERS[:3]:
            found = strictly(function, **options)(real())
            torch.testing.assert_close(plain(found), function(real()) if values is None else values)


@pytest.mark.gpu
@pytest.mark.parametrize("gradients", [False, True])
def test_on_a_gpu(gradients: bool, marked: Any, strictly: Compile) -> None:
    for program, make in ((of_reals(marked), real), (of_numbers(marked), number)):
        torch._dynamo.reset()
        check(program, strictly(program), partial(make, "cuda"), gradients=gradients)


def test_a_cached_graph_is_not_that_of_a_conjugate(strictly: Compile) -> None:
    for z in (number(), number().conj()):
        torch._dynamo.reset()
        compiled = strictly(lambda z: ((z * 1).abs(), torch.view_as_real(z * 3)))
        for one, other in zip(compiled(z), (z.abs(), torch.view_as_real(z * 3)), strict=True):
            torch.testing.assert_close(one, other)
