"""Results that share memory: objects, views, flags and version counters are eager's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from coilwork import compile_graph
from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning
from coilwork_frontend.calling_convention.result_aliasing import (
    CapturedResult,
    ResultObject,
    plan_shared_results,
)
from coilwork_frontend.torch_compat.aot_autograd import ResultFacts
from coilwork_frontend.torch_compat.tensors import find_creation, get_storage_identity

Compile = Callable[..., Callable[..., Any]]
Group = Callable[[Tensor], Sequence[Tensor]]

FRESH: Final[Mapping[str, Group]] = MappingProxyType(
    {
        "a view": lambda x: ((y := x + 1), y.view(2, 2)),
        "a view first": lambda x: ((y := x + 2).view(2, 2), y),
        "a slice": lambda x: ((y := x + 3), y[:]),
        "expanded": lambda x: ((y := x + 4), y.expand(2, 2)),
        "detached": lambda x: ((y := x * 1.5), y.detach()),
        "detached, and a view": lambda x: ((y := x * 2.5), y.detach().view(4), y.view(4)),
        "transposed twice": lambda x: ((y := x + 5), y.t().t()),
        "an alias": lambda x: ((y := x + 6), torch.ops.aten.alias(y)),
        "equal views": lambda x: ((y := x + 7).view(4), y.view(4)),
        "equal views of its shape": lambda x: ((y := x + 8).view(2, 2), y.view(2, 2)),
        "equal parts": lambda x: ((y := x + 9)[1:], y[1:]),
        "many": lambda x: ((y := x + 10), y.view(4), y.view(4), y[0], y[0], y[:, 0], y.t()),
        "nothing to do": lambda x: ((y := x + 11), y.contiguous(), y.to(torch.float32), y.reshape(2, 2)),
        "copies": lambda x: ((y := x + 12), y.clone(), x + 12),
        "in place": lambda x: ((y := x + 13), y.add_(1)),
        "a view in place": lambda x: ((y := x + 14), y.view(4).add_(1)),
        "a part in place": lambda x: ((y := x + 15), y[0].add_(1), y[0]),
        "a library's": lambda x: ((y := x @ (x + 1)), y.view(4), y.view(2, 2)),
        "other bits": lambda x: ((y := x + 16), y.view(torch.int32), y.view(torch.float32)),
        "a number": lambda x: ((y := (x + 17).sum()), y.view(()), y.detach()),
        "two of a sort": lambda x: ((y := torch.sort(x + 18))[0], y[0][:], y[1], y[1][:]),
        "all detached": lambda x: ((y := x * 3.5).detach(), y.detach(), y.detach().view(4)),
        "without gradients": lambda x: ((y := torch.full((2, 2), 3.0)), y.view(4), y.mT),
        "complex": lambda x: ((y := torch.complex(x, x + 1)), y.conj(), y.conj().imag, y.real),
        "empty": lambda x: ((y := x[:0] + 1), y.view(0, 2), y[:, :1]),
        "unsafe parts": lambda x: (*torch.unsafe_split((y := x.detach() + 22), 1), y, y[0]),
        "negated parts": lambda x: torch._neg_view(x.detach() + 25).split(1),
        "a view alone": lambda x: ((x.detach() + 23).t(),),
        "a part alone": lambda x: ((x.detach() + 24)[1:],),
        "a copied view": lambda x: ((x + 26).mT.reshape(4),),
        "a copied view of complex numbers": lambda x: (torch.complex(x, x + 26).mH.reshape(4),),
        "copied views of one": lambda x: ((y := torch.complex(x, x + 27)), y.mT.reshape(4), y.mT.flatten()),
        "parts of complex numbers": lambda x: torch.unsafe_split(torch.complex(x, x + 28), 1),
        "copied parts": lambda x: tuple(part.reshape(2) for part in torch.complex(x, x + 29).mT.split(1)),
        "a copy and a view of it": lambda x: ((x + 31).mT.ravel(),),
        "repeat_interleave": lambda x: ((x + 32).repeat_interleave(1, 0),),
        "einsum": lambda x: (torch.einsum("ij,jk->ik", x, x + 33),),
        "a row by a matrix": lambda x: ((x + 34)[0] @ x,),
    }
)
# AOTAutograd records these as results of one function, which must not be views: `aot_eager` gives no views
# either
PARTS: Final[Mapping[str, Group]] = MappingProxyType(
    {
        "chunks": lambda x: (x + 19).chunk(2),
        "rows": lambda x: (x + 20).unbind(0),
        "whole and parts": lambda x: ((y := x + 21), *y.split(1)),
    }
)
GIVEN: Final[Mapping[str, Group]] = MappingProxyType(
    {
        "itself": lambda x: (x,),
        "its views": lambda x: (
            x,
            x.view(2, 2),
            x.view(2, 2),
            x[:],
            x.view(4),
            x.t(),
            x.detach(),
            x.detach(),
        ),
        "nothing to do": lambda x: ((y := x.view(2, 2)), y.to(torch.float32), y.contiguous(), x.t(), x.t()),
        "overwritten": lambda x: (x.mul_(2), x, x.view(4), x.view(4), x.detach()),
    }
)
MUTATIONS: Final[Mapping[str, Callable[[Tensor], object]]] = MappingProxyType(
    {
        "unsqueeze_": lambda y: y.unsqueeze_(0),
        "transpose_": lambda y: y.transpose_(0, -1) if y.dim() else y.unsqueeze_(0),
        "resize_ to less": lambda y: y.resize_(min(2, y.numel())),
        "resize_ to more": lambda y: y.resize_(60),
        "set_": lambda y: y.set_(torch.ones(3, dtype=y.dtype)),
        "requires_grad_": lambda y: y.requires_grad_() if y.is_floating_point() else y,
        "data": lambda y: setattr(y, "data", torch.full((2,), 7, dtype=y.dtype)),
        "as_strided_": lambda y: y.as_strided_((min(2, y.numel()),), (1,), 0),
        "add_": lambda y: y.add_(1),
        "detach_": lambda y: y.detach_(),
        "recorded write": lambda y: y.mul_(torch.ones((), requires_grad=True)),
    }
)
MODES: Final[Mapping[str, tuple[bool, Callable[[], AbstractContextManager[object]]]]] = MappingProxyType(
    {
        "plain": (False, nullcontext),
        "gradients": (True, nullcontext),
        "no_grad": (True, torch.no_grad),
        "inference_mode": (False, torch.inference_mode),
    }
)


def count_of(y: Tensor) -> int:
    return 0 if y.is_inference() else y._version


def facts_of(tensors: Sequence[Tensor]) -> list[object]:
    """Everything that can be asked of `tensors` and of how they hang together, but for counts of writes."""
    found: list[object] = []
    for y in tensors:
        if not can(lambda view: view.grad_fn, y):
            # `set_` has left a view nothing to be a view of
            return found
        found.append([y is other for other in tensors])
        found.append([get_storage_identity(y) == get_storage_identity(other) for other in tensors])
        found.append((tuple(y.shape), y.stride(), y.storage_offset(), y.dtype, y.untyped_storage().nbytes()))
        found.append((y.is_leaf, y.requires_grad, y.grad_fn is None, y.is_conj(), y.is_neg(), type(y)))
        found.append([y._base is other for other in tensors] if y._is_view() else None)
        found.append(find_creation(y))
        found.append(y.detach().resolve_conj().resolve_neg().tolist() if y.numel() < 50 else None)
    return found


def counts_of(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Whose counts go up when each is written to."""
    found = []
    for y in tensors:
        before = [count_of(other) for other in tensors]
        if not y.is_inference():
            increment_version(y)
        found.append([count_of(other) - count for other, count in zip(tensors, before, strict=True)])
    return found


def all_of(groups: Mapping[str, Group]) -> Callable[[Tensor], list[Sequence[Tensor]]]:
    made = tuple(groups.values())
    return lambda x: [group(x) for group in made]


def called(
    function: Callable[[Tensor], list[Sequence[Tensor]]], mode: str, *, as_leaf: bool = True
) -> list[list[Tensor]]:
    """The groups that `function` makes, each with the input."""
    gradients, context = MODES[mode]
    x = torch.arange(4.0).reshape(2, 2).requires_grad_(gradients)
    x = x if as_leaf else x * 1
    with context():
        return [[*group, x] for group in function(x)]


def beside_eager(
    groups: Mapping[str, Group], compiled: Callable[..., Any], mode: str, **kwargs: bool
) -> Iterator[tuple[str, list[Tensor], list[Tensor]]]:
    pairs = zip(called(compiled, mode, **kwargs), called(all_of(groups), mode, **kwargs), strict=True)
    for name, (ours, eager) in zip(groups, pairs, strict=True):
        yield name, ours, eager


def groups_for(mode: str) -> dict[str, Group]:
    return dict(FRESH) if mode == "gradients" else {**FRESH, **PARTS}


def can(mutate: Callable[[Tensor], object], y: Tensor) -> bool:
    try:
        mutate(y)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options",
    [{}, {"executor": "python"}, {"wrapper": "fx"}, {"wrapper": "cpp"}],
    ids=["native", "python", "fx", "cpp"],
)
def test_results_are_the_objects_that_eager_gives(
    options: dict[str, object], mode: str, strictly: Compile
) -> None:
    groups = groups_for(mode)
    compiled = strictly(all_of(groups), **options)
    for name, ours, eager in beside_eager(groups, compiled, mode):
        assert facts_of(ours) == facts_of(eager), name
        assert counts_of(ours) == counts_of(eager), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("mode", MODES)
def test_what_shows_an_input_without_being_its_view(mode: str, dtype: torch.dtype, strictly: Compile) -> None:
    def show(x: Tensor) -> list[Tensor]:
        found = [torch.ops.aten._unsafe_view(x, [4])]
        # in inference mode eager gives views here, though the operator's contract is that it gives none
        return found if mode == "inference_mode" else [*found, *torch.unsafe_split(x, 1)]

    gradients, context = MODES[mode]
    compiled = strictly(show)
    made = []
    for function in (compiled, show):
        x = torch.arange(4.0).to(dtype).reshape(2, 2).requires_grad_(gradients)
        with context():
            found = function(x)
        made.append([(y._is_view(), y._base is x, y.is_inference(), y.requires_grad) for y in found])
        assert all(get_storage_identity(y) == get_storage_identity(x) for y in found)
        assert [y.detach().tolist() for y in found] == [y.detach().tolist() for y in show(x)]
    assert made[0] == made[1]


@pytest.mark.parametrize("mode", MODES)
def test_pooled_rows_are_views_where_eager_pools_images(mode: str, strictly: Compile) -> None:
    def pool(x: Tensor) -> list[Tensor]:
        return [nn.functional.max_pool1d(x, 2), torch.max_pool1d(x, 1) * 2, nn.MaxPool1d(2)(x[None])]

    gradients, context = MODES[mode]
    compiled = strictly(pool)
    made = []
    for function in (compiled, pool):
        x = torch.arange(4.0).reshape(2, 2).requires_grad_(gradients)
        with context():
            made.append([(y._is_view(), y.requires_grad, y.tolist()) for y in function(x)])
    assert made[0] == made[1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cached", [False, True], ids=["compiled", "from the cache"])
def test_a_change_of_one_result_leaves_the_others(cached: bool, mode: str, leniently: Compile) -> None:
    groups = groups_for(mode)
    if cached:
        called(leniently(all_of(groups)), mode)
        torch._dynamo.reset()
    compiled = leniently(all_of(groups))
    unlike = []
    for mutation, mutate in MUTATIONS.items():
        for member in range(3):
            for name, ours, eager in beside_eager(groups, compiled, mode):
                if member >= len(eager) - 1 or (name, mutation) in STALE:
                    continue
                done = can(mutate, ours[member]), can(mutate, eager[member])
                if done[0] != done[1] or facts_of(ours) != facts_of(eager):
                    unlike.append((name, mutation, member))
    assert not unlike


# Autograd of eager mode takes a view to have been written to if its base was before it asked for gradients.
STALE: Final = (
    ("in place", "requires_grad_"),
    ("a view in place", "requires_grad_"),
    ("a part in place", "requires_grad_"),
)


# Dynamo leaves the bit of a tensor whose data is replaced as it was, with the backend `eager` too.
KEPT_BIT: Final = ("negated parts", "data")


@pytest.mark.parametrize("mode", ["plain", "gradients", "no_grad"])
def test_views_of_inputs_are_objects_of_their_own(mode: str, strictly: Compile) -> None:
    for name, group in GIVEN.items():
        torch._dynamo.reset()
        overwritten = name == "overwritten"
        if overwritten and mode == "no_grad":
            continue
        groups = {name: group}
        compiled = strictly(all_of(groups))
        for mutate in (None, *MUTATIONS.values()):
            for member in range(len(group(torch.zeros(2, 2)))):
                ((_, ours, eager),) = beside_eager(groups, compiled, mode, as_leaf=not overwritten)
                if mutate is not None:
                    assert can(mutate, ours[member]) == can(mutate, eager[member])
                assert facts_of(ours) == facts_of(eager), (name, member)


# eager mode refuses to do these to views
REFUSED: Final = ("detach_", "recorded write")


# each group is of another kind, for which Dynamo compiles what mutates it
@torch._dynamo.config.patch(recompile_limit=64)
@pytest.mark.parametrize("mutation", [name for name in MUTATIONS if name not in REFUSED])
def test_across_a_graph_break(mutation: str, leniently: Compile) -> None:
    mutate = MUTATIONS[mutation]
    groups = {name: group for name, group in FRESH.items() if (name, mutation) not in (*STALE, KEPT_BIT)}

    def broken(x: Tensor) -> list[Sequence[Tensor]]:
        made = [group(x) for group in groups.values()]
        torch._dynamo.graph_break()
        for group in made:
            mutate(group[-1])
        return [(*group, *(y.detach() + 1 for y in group)) for group in made]

    pairs = zip(called(leniently(broken), "plain"), called(broken, "plain"), strict=True)
    for name, (ours, eager) in zip(groups, pairs, strict=True):
        assert facts_of(ours) == facts_of(eager), name


def test_of_open_sizes() -> None:
    groups = {
        name: FRESH[name] for name in ("a slice", "detached", "in place", "a number", "complex", "copies")
    }
    groups["flat"] = lambda x: ((y := x + 1).view(-1), y.flatten(), y, y[1:], y[1:])
    compiled = torch.compile(all_of(groups), backend=backend, options={"strict": True}, dynamic=True)
    for rows in (3, 5):
        for gradients in (False, True):
            x = torch.arange(3.0 * rows).reshape(rows, 3).requires_grad_(gradients)
            for name, ours, eager in zip(groups, compiled(x), all_of(groups)(x), strict=True):
                assert facts_of(ours) == facts_of(eager), name
                assert counts_of(ours) == counts_of(eager), name


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 2))
        self.register_buffer("steps", torch.zeros(2))

    def forward(self, x: Tensor) -> list[Tensor]:
        y = x @ self.weight
        return [self.weight, self.weight.view(2, 2), self.weight.detach(), self.steps, self.steps[:], y, y[:]]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("change", [torch.clone, lambda part: part * 1, lambda part: part.neg().neg()])
def test_a_copy_of_a_part_does_not_keep_the_whole(change: Callable[[Tensor], Tensor], dynamic: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return change((x + 1)[2:6])

    x = torch.randn(50)
    result = torch.compile(function, backend=backend, dynamic=dynamic, options={"strict": True})(x)
    assert torch.equal(result, function(x))
    assert result.untyped_storage().nbytes() == function(x).untyped_storage().nbytes()
    assert result.storage_offset() == 0


def test_parameters_and_buffers_are_returned_as_they_are(strictly: Compile) -> None:
    layer = Layer()
    ours, eager = strictly(layer)(torch.ones(2, 2)), layer(torch.ones(2, 2))
    assert facts_of([*ours, layer.weight, layer.steps]) == facts_of([*eager, layer.weight, layer.steps])
    assert ours[0] is layer.weight and ours[3] is layer.steps


def test_a_write_to_one_result_is_noticed_by_what_saved_the_other(strictly: Compile) -> None:
    y, view = strictly(lambda x: ((z := x + 1), z.t()))(torch.ones(2, 2))
    w = torch.ones(2, 2, requires_grad=True)
    product = (w * y).sum()
    view.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return (y := x + 1), y.view(4)


@pytest.mark.parametrize("name", PARTS)
def test_recorded_parts_refuse_writes_as_in_eager_mode(name: str, strictly: Compile) -> None:
    def double(y: Tensor) -> object:
        return y.mul_(2)

    compiled = strictly(all_of({name: PARTS[name]}))
    for member in range(2):
        ((_, ours, eager),) = beside_eager({name: PARTS[name]}, compiled, "gradients")
        assert can(double, ours[member]) == can(double, eager[member])
        # a part of what was written to knows no gradient any more
        assert can(lambda y: y.sum().backward(), ours[-2]) == can(lambda y: y.sum().backward(), eager[-2])
        ((_, ours, _),) = beside_eager({name: PARTS[name]}, compiled, "gradients")
        ours[-2].sum().backward()


def test_gradients_flow_through_a_write_to_a_view(strictly: Compile) -> None:
    def gradient(function: Callable[[Tensor], Sequence[Tensor]]) -> Tensor:
        w = torch.full((4,), 3.0, requires_grad=True)
        y, view = function(torch.ones(2, 2))
        view.mul_(w)
        return torch.autograd.grad(y.square().sum(), w)[0]

    torch.testing.assert_close(gradient(strictly(pair)), gradient(pair))


# In training, pairs of a view and of what is detached from it
DETACHED: Final[Mapping[str, Group]] = MappingProxyType(
    {
        "turned": lambda x: ((y := (x + 3).t()), y.detach()),
        "turned, and again": lambda x: ((y := (x + 3).t()), y.detach(), y, y.detach().t()),
        "a row": lambda x: ((y := (x + 3)[0]), y.detach()),
        "a row, first detached": lambda x: ((y := (x + 3)[0]).detach(), y),
        "a part": lambda x: ((y := (x + 3).chunk(2)[1]), y.detach()),
        "one of many": lambda x: ((y := (x + 3).unbind(1)[1]), y.detach(), y.detach()),
        "a column, with the whole": lambda x: ((y := (z := x + 3)[:, 1]), y.detach(), z),
        "expanded": lambda x: ((y := (x + 3)[:1].expand(2, 2)), y.detach()),
        "a view of a view": lambda x: ((y := (x + 3).view(4)[1:3]), y.detach(), y.view(2, 1)),
        "negated": lambda x: ((y := torch._neg_view(x + 3).t()), y.detach()),
        "in place": lambda x: ((y := (x + 3).t().mul_(2)), y.detach()),
        "of another type": lambda x: ((y := torch.view_as_real(torch.complex(x, x + 1))), y.detach()),
        "a part, and its bits": lambda x: ((y := (x + 3).split([1, 1])[1]), y.view(torch.int32), y),
        "a part of another type": lambda x: ((y := torch.complex(x, x + 1).imag.t()), y.detach()),
        "of products": lambda x: ((y := (x @ x).transpose(0, 1)[1:]), y.detach()),
    }
)


@pytest.mark.parametrize("dynamic", [False, True], ids=["closed", "open"])
def test_detached_views_beside_the_views(dynamic: bool) -> None:
    compiled = torch.compile(all_of(DETACHED), backend=backend, dynamic=dynamic, options={"strict": True})
    losses = torch.zeros(()), torch.zeros(())
    for name, ours, eager in beside_eager(DETACHED, compiled, "gradients"):
        for one, other in zip(ours, eager, strict=True):
            assert one.tolist() == other.tolist(), name
            assert (one.stride(), one.storage_offset()) == (other.stride(), other.storage_offset()), name
            assert one.requires_grad == other.requires_grad, name
            shared = [get_storage_identity(one) == get_storage_identity(y) for y in ours]
            assert shared == [get_storage_identity(other) == get_storage_identity(y) for y in eager], name
        losses = tuple(
            loss + next(y for y in group if y.requires_grad).square().sum()
            for loss, group in zip(losses, (ours, eager), strict=True)
        )
    found, expected = (
        torch.autograd.grad(loss, group[-1])[0] for loss, group in zip(losses, (ours, eager), strict=True)
    )
    torch.testing.assert_close(found, expected)


# In training, views of memory that the caller does not see
ALONE: Final[Mapping[str, Group]] = MappingProxyType(
    {
        "turned": lambda x: ((x + 3).t(),),
        "a row": lambda x: ((x * 3)[0],),
        "a view of a view": lambda x: ((x + 4).view(4)[1:3].view(2, 1),),
        "expanded": lambda x: ((x + 5)[:1].expand(2, 2),),
        "a diagonal": lambda x: ((x * 5).diagonal(),),
        "of products": lambda x: ((x @ x).mT,),
        "a copy": lambda x: ((x + 9).t().reshape(4),),
        "conjugated": lambda x: (torch.complex(x, x + 1).conj(),),
        "negated": lambda x: (torch.complex(x, x + 2).conj().imag.t(),),
        "in place": lambda x: ((x + 6).t().add_(1),),
        "one of many": lambda x: ((x + 7).unbind(0)[1],),
        "no view": lambda x: (x + 8,),
    }
)


@pytest.mark.parametrize("dynamic", [False, True], ids=["closed", "open"])
def test_recorded_views_that_come_alone(dynamic: bool) -> None:
    compiled = torch.compile(all_of(ALONE), backend=backend, dynamic=dynamic, options={"strict": True})

    def scaled(y: Tensor) -> Tensor:
        return y.mul_(torch.full((), 3.0))

    for mutate in (None, *MUTATIONS.values(), scaled):
        is_differentiable = mutate in (None, MUTATIONS["add_"], scaled)
        losses = [torch.zeros(()), torch.zeros(())]
        groups = list(beside_eager(ALONE, compiled, "gradients"))
        for name, ours, eager in groups:
            if mutate is not None:
                assert can(mutate, ours[0]) == can(mutate, eager[0]), name
            assert facts_of(ours) == facts_of(eager), name
            if is_differentiable and eager[0].grad_fn is not None:
                for k, (y, _) in enumerate((ours, eager)):
                    losses[k] = (
                        losses[k] + (torch.view_as_real(y.resolve_conj()) if y.is_complex() else y).sum()
                    )
        found, wanted = (
            torch.autograd.grad(loss, groups[0][k + 1][-1], allow_unused=True)[0]
            if loss.requires_grad
            else None
            for k, loss in enumerate(losses)
        )
        torch.testing.assert_close(found, wanted)


FACTS: Final = ResultFacts(start=1, count=3, remade=frozenset((1,)), constant=frozenset((2,)))


def test_results_of_memory_of_their_own_are_left_alone() -> None:
    objects = (ResultObject(0, 0), ResultObject(1, 1), ResultObject(2, 2), ResultObject(2, 2), None)
    assert not plan_shared_results(objects, (CapturedResult(),) * 3, FACTS, recorded=False)


def test_what_an_operator_shows_alone_is_made_no_view() -> None:
    objects = (ResultObject(0, 0, is_shown=True), None)
    (found,) = plan_shared_results(objects, (CapturedResult(),) * 3, FACTS, recorded=False)
    assert (found.whole, found.source, found.views, found.detached) == (0, 0, (), ())


def test_what_is_counted_apart_is_a_tensor_of_its_own() -> None:
    objects = (None, ResultObject(1, 1), ResultObject(1, 2), ResultObject(1, 3))
    captured = (CapturedResult(count=0), CapturedResult(count=2), CapturedResult(count=2))
    facts = replace(FACTS, remade=frozenset())
    (found,) = plan_shared_results(objects, captured, facts, recorded=False)
    assert (found.whole, found.detached) == (1, ((2, None), (3, 2)))


def test_a_base_that_is_made_elsewhere_is_hidden() -> None:
    objects = (ResultObject(0, 0), ResultObject(1, 1), ResultObject(1, 2), ResultObject(1, 3))
    captured = (CapturedResult(), CapturedResult(0), CapturedResult(0))
    (found,) = plan_shared_results(objects, captured, FACTS, recorded=False)
    assert found.source == 2
    assert found.whole < 0
    assert [view[:2] for view in found.views] == [(2, found.whole), (3, found.whole)]
    # what asks for gradients is no view
    (recorded,) = plan_shared_results(objects, captured, FACTS, recorded=True)
    assert recorded.whole == recorded.source == 3
    assert [view.position for view in recorded.views] == [2]


# Programs that are drawn: what they may do.
DRAWN_FRESH: Final = (
    "{a} + {k}",
    "{a} * {k}.5",
    "{a}.amax()",
    "{a}.clone()",
    "{a}.contiguous()",
    "{a}.to(torch.float32)",
    "torch.full_like({a}, {k})",
    "torch.sort({a})[0]",
    "torch.cat([{a}, {b}])",
    "torch.complex({a}, {a} + 1)",
    "torch.where({a} > 0, {a}, {b})",
)
DRAWN_VIEWS: Final = (
    "{a}.view(-1)",
    "{a}.view({a}.shape)",
    "{a}[:]",
    "{a}[0]",
    "{a}[1:]",
    "{a}[..., :1]",
    "{a}.t()",
    "{a}.t().t()",
    "{a}.unsqueeze(0)",
    "{a}.squeeze()",
    "{a}.expand(2, *{a}.shape)",
    "{a}.expand({a}.shape)",
    "{a}.detach()",
    "{a}.conj()",
    "{a}.imag",
    "{a}.real",
    "{a}.view(torch.int32)",
    "{a}.diagonal()",
    "{a}.flatten()",
    "{a}.as_strided((2,), (1,), 1)",
    "torch._neg_view({a})",
    "torch.ops.aten.alias({a})",
)
# not `unsafe_split`: torch's tracing takes its results to share no memory with what is written later
DRAWN_PARTS: Final = (
    "{a}.chunk(2)[0]",
    "{a}.split(1)[-1]",
    "{a}.unbind(0)[0]",
    "torch.tensor_split({a}, 2)[1]",
)
# Dynamo forgets other names of what it gives another shape
DRAWN_WRITES: Final = ("{a}.add_({k})", "{a}.mul_(2)", "{a}.zero_()")


def given(mode: str) -> tuple[Tensor, Tensor]:
    gradients = MODES[mode][0]
    return (
        torch.arange(4.0).reshape(2, 2).requires_grad_(gradients),
        torch.ones(2, 2, requires_grad=gradients),
    )


def draw(draws: random.Random, mode: str, number: int) -> list[str]:
    """The lines of one group of results, each of which eager mode takes."""
    x, p = given(mode)
    values: dict[str, Any] = {"torch": torch, "x": x, "p": p}
    # torch's tracing refuses some writes to views of inputs that are made without gradients
    names = ["x", "p"] if mode == "plain" else []
    first = draws.choice((f"v0 = x + {number}", f"v0 = p * {number}", *["v0 = x.view(2, 2)"] * len(names)))
    lines: list[str] = []

    def take(line: str) -> None:
        try:
            with MODES[mode][1]():
                exec(line, values)
        except (RuntimeError, IndexError, ValueError):
            return
        lines.append(line)
        name = line.split(" = ")[0]
        # the place of an empty part of an empty part is not eager's yet
        if isinstance(values.get(name), Tensor) and values[name].numel():
            names.append(name)

    take(first)
    for step in range(draws.randrange(1, 7)):
        (kind,) = draws.choices((DRAWN_FRESH, DRAWN_VIEWS, DRAWN_PARTS, DRAWN_WRITES), (2, 6, 1, 1))
        line = draws.choice(kind).format(
            a=draws.choice(names), b=draws.choice(names), k=draws.randrange(1, 6)
        )
        if kind is DRAWN_WRITES:
            if line[0] not in "xp":
                take(line)
        else:
            take(f"v{step + 1} = {line}")
    wanted = [draws.choice(names) for _ in range(draws.randrange(1, 5))]
    return [*lines, f"results.append([{', '.join(wanted)}])"]


def program_of(groups: Sequence[Sequence[str]]) -> Callable[..., Any]:
    lines = [f"    {line}" for group in groups for line in group]
    values: dict[str, Any] = {"torch": torch}
    exec("\n".join(["def program(x, p):", "    results = []", *lines, "    return results"]), values)
    program: Callable[..., Any] = values["program"]
    return program


def look(program: Callable[..., Any], mode: str, seed: int, count: int) -> list[object]:
    """What can be asked of each group, as it comes and after a random change of one of its results."""
    draws = random.Random(seed)
    found: list[object] = []
    for position in [None, *range(count)] * 2:
        inputs = given(mode)
        with MODES[mode][1]():
            groups = [[*group, *inputs] for group in program(*inputs)]
        if position is None:
            found.append([(facts_of(group), counts_of(group)) for group in groups])
            continue
        group = groups[position]
        name = draws.choice(list(MUTATIONS))
        changed = can(MUTATIONS[name], group[draws.randrange(len(group) - 2)])
        found.append((name, changed, facts_of(group) if changed else None))
    return found


@pytest.mark.parametrize("mode", ["plain", "no_grad", "inference_mode"])
def test_drawn_results_are_those_of_eager_mode(mode: str, strictly: Compile) -> None:
    count = 12
    for seed in range(2):
        torch._dynamo.reset()
        draws = random.Random(seed)
        groups = [draw(draws, mode, number + 1) for number in range(count)]
        program = program_of(groups)
        ours, eager = look(strictly(program), mode, seed, count), look(program, mode, seed, count)
        for position, (one, other) in enumerate(zip(ours, eager, strict=True)):
            assert one == other, groups[position % (count + 1) - 1]


Program = Callable[[Tensor, Tensor], Any]

REFUSAL: Final = "modified by an inplace operation"


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.rand(4, 4, generator=generator) + 0.5 for _ in range(2))
    return x.requires_grad_(), w.requires_grad_()


def gradients(
    function: Program, write: Callable[[list[Tensor], Tensor], object] | None
) -> tuple[Tensor | None, ...]:
    x, w = inputs()
    made = function(x, w)
    results = [made] if isinstance(made, Tensor) else list(made)
    weights = [torch.arange(r.numel()).view(r.shape) + 1.0 for r in results]
    if write is not None:
        with torch.no_grad():
            write(results, w)
    given = [(r, weight) for r, weight in zip(results, weights, strict=True) if r.requires_grad]
    torch.autograd.backward([r for r, _ in given], [weight for _, weight in given])
    return x.grad, w.grad


def writing_changes_no_gradient(
    function: Program, write: Callable[[list[Tensor], Tensor], object], dynamic: bool
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, options={"strict": True}, dynamic=dynamic)
    expected = gradients(function, None)
    torch.testing.assert_close(gradients(compiled, None), expected)
    with pytest.raises(RuntimeError, match=REFUSAL):
        gradients(function, write)
    refused = False
    try:
        found = gradients(compiled, write)
    except RuntimeError as refusal:
        refused = REFUSAL in str(refusal)
        found = ()
    if not refused:  # it reads what was not written to
        torch.testing.assert_close(found, expected)


OF_WEIGHTS: Final[Mapping[str, Program]] = MappingProxyType(
    {
        "matrix": lambda x, w: x.sin() @ w,
        "transpose": lambda x, w: F.linear(x.sin(), w),
        "row": lambda x, w: x * w[0],
        "column": lambda x, w: x.sin() * w[:, None, 0],
        "batch": lambda x, w: torch.bmm(x[None].sin(), w[None]),
        "filters": lambda x, w: F.conv1d(x[None].sin(), w[:, :, None]),
    }
)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("what", OF_WEIGHTS)
def test_weights_that_are_saved_as_views(what: str, dynamic: bool) -> None:
    writing_changes_no_gradient(OF_WEIGHTS[what], lambda _, w: w.mul_(3), dynamic)


def with_square(view: Callable[[Tensor], Tensor]) -> Program:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        made = (x * w).exp()
        return view(made), made * made

    return function


OF_RESULTS: Final[Mapping[str, Program]] = MappingProxyType(
    {
        "whole": with_square(lambda e: e),
        "row": with_square(lambda e: e[0]),
        "transpose": with_square(lambda e: e.t()),
        "detached": with_square(lambda e: e.detach()),
        "row of detached": with_square(lambda e: e.detach()[0]),
        "product of itself": lambda x, w: (lambda e: (e, e @ e))(x * w),
        "probabilities": lambda x, w: (x * w).softmax(-1).transpose(0, 1),
        "mean": lambda x, w: (lambda m: (m.view(2, 2), x * m * w))(x.mean(-1)),
        "two views": lambda x, w: (lambda e: (e.view(-1), e.view(8, 2), e * e))((x * w).exp()),
    }
)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("what", OF_RESULTS)
def test_results_that_share_memory_with_what_is_saved(what: str, dynamic: bool) -> None:
    writing_changes_no_gradient(OF_RESULTS[what], lambda results, _: results[0].mul_(3), dynamic)


def test_writing_to_what_is_not_saved(strictly: Compile) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = (x * w).exp()
        return made.t(), (x + w).t(), made * made

    for write in (lambda results, _: results[1].mul_(3), lambda results, _: results[2].zero_()):
        torch._dynamo.reset()
        torch.testing.assert_close(gradients(strictly(function), write), gradients(function, write))


def test_results_are_written_to_with_gradients(strictly: Compile) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        made = (x * w).exp()
        return made.t(), (made + 1)[1:]

    def rows_added(called: Program) -> tuple[Tensor | None, ...]:
        x, w = inputs()
        _, rows = called(x, w)
        rows.add_(w[1:]).mul_(2)
        rows.sum().backward()
        return rows.detach(), x.grad, w.grad

    torch._dynamo.reset()
    torch.testing.assert_close(rows_added(strictly(function)), rows_added(function))


def test_graphs_that_run_in_eager_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> object:
        raise ValueError("no")

    monkeypatch.setattr(compile_graph, "build_with_retries", failing)
    torch._dynamo.reset()
    compiled = torch.compile(OF_RESULTS["row"], backend=backend, options={"cache": False})
    with pytest.warns(CoilworkFallbackWarning):
        torch.testing.assert_close(gradients(compiled, None), gradients(OF_RESULTS["row"], None))
    with pytest.raises(RuntimeError, match=REFUSAL):
        gradients(compiled, lambda results, _: results[0].mul_(3))
