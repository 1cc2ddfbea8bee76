"""Every role, applied by both interpreters: objects, memory, counts of writes, views and marks
are eager's.
"""

from __future__ import annotations

import copy
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from coilwork_runtime import bind_roles, bind_separate
from coilwork_runtime.executor.native_program import find_executor_extension
from coilwork_runtime.manifest.convention_parser import Act, parse_roles
from coilwork_runtime.native_build import EXECUTOR
from coilwork_runtime.torch_compat import reinterpret


@pytest.fixture(params=["native", "python"], autouse=True)
def interpreter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.delitem(sys.modules, EXECUTOR, raising=False)
    elif shutil.which("g++") is None:
        pytest.skip("needs g++")
    else:
        monkeypatch.setitem(sys.modules, EXECUTOR, find_executor_extension(None))
    return str(request.param)


def flip(value: Tensor) -> Tensor:
    """The transpose, as a program makes it: by place and strides, with a count of its own."""
    return reinterpret(value, value.shape[::-1], value.stride()[::-1], 0)


def ones() -> Tensor:
    return torch.arange(12.0).view(3, 4)


def unaligned() -> Tensor:
    return torch.arange(13.0)[1:].view(3, 4)


def complexes() -> Tensor:
    return torch.complex(ones(), ones() + 1)


def add_one(args: list[Any]) -> list[Any]:
    assert args[0].data_ptr() % 16 == 0 and not args[0].is_neg()
    args[0] += 1
    return [args[0] * 2]


def read_memory(args: list[Any]) -> list[Any]:
    assert not args[0].is_neg() and not args[0].is_conj()
    return [args[0] * 2]


def conjugates(args: list[Any]) -> list[Any]:
    assert args[0].is_conj() and not args[0].is_neg()
    args[0] += 1
    return [args[0] * 2]


def grown(x: Tensor) -> Tensor:
    return torch.cat([x, x])


def set_grown(x: Tensor) -> list[Any]:
    made = grown(x)
    torch.ops.aten.set_.source_Tensor(x, made)
    return [made + 1]


def halves(x: Tensor) -> list[Any]:
    doubled = x * 2
    return [*torch.split(doubled, [1, 2])]


def raw_halves(args: list[Any]) -> list[Any]:
    doubled = args[0] * 2
    return [reinterpret(doubled, (1, 4), (4, 1), 0), reinterpret(doubled, (2, 4), (4, 1), 4)]


def with_flip(x: Tensor) -> list[Any]:
    doubled = x * 2
    return [doubled, doubled.t()]


def raw_flip(args: list[Any]) -> list[Any]:
    doubled = args[0] * 2
    return [doubled, flip(doubled)]


def raw_detached(args: list[Any]) -> list[Any]:
    return [(args[0] * 2)[1:]]


def repeated(args: list[Any]) -> list[Any]:
    doubled = args[0] * 2
    return [doubled, doubled, doubled]


def hidden_views(x: Tensor) -> list[Any]:
    doubled = x * 2
    return [doubled.view(-1), doubled.data.view(-1)]


def raw_hidden_views(args: list[Any]) -> list[Any]:
    doubled = args[0] * 2
    return [reinterpret(doubled, (12,), (1,), 0) for _ in range(2)]


def raw_inference(args: list[Any]) -> list[Any]:
    with torch.inference_mode():
        return [flip(args[0])]


@dataclass(frozen=True)
class Case:
    """Roles, the call of a program that they are around, and what eager does with `make()`."""

    roles: str
    program: Callable[[list[Any]], Sequence[Any]]
    eager: Callable[..., Any]
    make: Callable[[], Tensor] = ones
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    grads: tuple[bool, ...] = (True, False)


CASES = (
    Case("in 0 donated", lambda args: [args[0] * 2], lambda x: [x * 2]),
    Case("in 0 aligned update", add_one, lambda x: [x.add_(1) * 2]),
    Case("in 0 aligned update", add_one, lambda x: [x.add_(1) * 2], unaligned),
    Case("in 0 aligned", read_memory, lambda x: [x * 2], unaligned),
    Case("in 0 resolved", read_memory, lambda x: [x * 2], lambda: torch._neg_view(ones())),
    Case("in 0 resolved", read_memory, lambda x: [x * 2]),
    Case("in 0 resolved", read_memory, lambda x: [x * 2], lambda: complexes().conj()),
    Case("in 0 resolved update", add_one, lambda x: [x.add_(1) * 2], lambda: torch._neg_view(ones())),
    Case(
        "in 0 aligned update\nin 0 resolved update",
        add_one,
        lambda x: [x.add_(1) * 2],
        lambda: torch._neg_view(unaligned()),
    ),
    Case(
        "in 0 resolved update conjugate",
        conjugates,
        lambda x: [x.add_(1) * 2],
        lambda: torch._neg_view(complexes()).conj(),
    ),
    Case("in 0 set to out 1", lambda a: [grown(a[0]) + 1, grown(a[0])], set_grown, grads=(False,)),
    Case("in 0 strided 1 3", lambda args: [args[0] * 2], lambda x: [x.t().contiguous().t() * 2]),
    Case("in 0 strided 4 1", lambda args: [args[0] * 2], lambda x: [x * 2]),
    Case("in 0 strided -1 -2", lambda args: [args[0] * 2], lambda x: [x.t().contiguous().t() * 2]),
    Case("in 0 strided -2 -1", lambda args: [args[0] * 2], lambda x: [x * 2]),
    Case("out 0 strided -1 -2", lambda args: [args[0] * 2], lambda x: [x.t().contiguous().t() * 2]),
    Case("out 0 strided 1 3", lambda args: [args[0] * 2], lambda x: [x.t().contiguous().t() * 2]),
    Case("out 0 number bool", lambda args: [args[0].sum()], lambda x: [bool(x.sum())]),
    Case("out 0 number float", lambda args: [args[0].sum()], lambda x: [x.sum().item()]),
    Case("out 0 number float\nout 1 number bool", lambda args: [3, 0], lambda x: [3.0, False]),
    Case("out 0 constant True\nout 1 constant 0.5", lambda args: (None, None), lambda x: [True, 0.5]),
    Case("out 0 detached", raw_detached, lambda x: [(x * 2)[1:].detach()]),
    Case("out 0 detached", lambda args: [args[0] * 2], lambda x: [x * 2]),
    Case("out 0 counted with in 0", lambda args: [flip(args[0])], lambda x: [x.t().detach()]),
    Case("out 1 counted with out 0", raw_flip, lambda x: (y := x * 2, y.t().detach())),
    Case("out 0 counted with in 0", lambda args: [args[0] * 2], lambda x: [x * 2]),
    Case("out 1 counted apart", raw_flip, lambda x: (y := x * 2, y.data.t().detach())),
    Case("out 1 view of out 0", raw_flip, with_flip, grads=(True,)),
    Case("out 1 view of out 0 as DEFAULT", raw_flip, with_flip, grads=(True,)),
    Case("out 1 view of out 0 as NO_GRAD_MODE", raw_flip, with_flip, grads=(False,)),
    Case("out 1 view of out 0", lambda args: [args[0], args[0] * 2], lambda x: [x, x * 2]),
    Case("out 0 view of out 0", lambda args: [args[0] * 2], lambda x: [(x * 2).view_as(x)]),
    Case(
        "out 0 view of out 0 unless view\nout 1 view of out 1 unless view",
        lambda args: (args[0] * 2, (args[0] * 3).t()),
        lambda x: ((x * 2).view_as(x), (x * 3).t()),
    ),
    Case(
        "hidden 0 is out 0\nout 0 view of hidden 0 as MULTI_OUTPUT_NODE\n"
        "out 1 view of hidden 0 as MULTI_OUTPUT_NODE",
        raw_halves,
        halves,
        grads=(True,),
    ),
    Case(
        "hidden 0 is out 0\nhidden 1 is hidden 0\nhidden 1 counted apart\nout 0 view of hidden 0\n"
        "out 1 view of hidden 1",
        raw_hidden_views,
        hidden_views,
        grads=(True,),
    ),
    Case("out 1 is out 0\nout 2 is out 0", repeated, lambda x: (y := x * 2, y, y)),
    Case("out 0 is in 0", lambda args: [args[0][:]], lambda x: [x]),
    Case("out 0 shown of in 0", lambda args: [args[0] * 2], lambda x: [x * 2]),
    Case("out 0 shown of in 0", raw_inference, lambda x: [x.t().detach().detach()]),
    Case("out 0 shown of in 0 as view", raw_inference, lambda x: [x.detach().t()]),
    Case("out 0 marked negated", lambda args: [args[0] * 2], lambda x: [torch._neg_view(x * 2).detach()]),
    Case(
        "out 0 marked negated conjugated",
        lambda args: [args[0] * 2],
        lambda x: [torch._neg_view(x * 2).conj().detach()],
        complexes,
    ),
    Case(
        "out 0 marked conjugated gradient",
        lambda args: [args[0] * 2],
        lambda x: [(x * 2).conj()],
        complexes,
    ),
    Case(
        "out 0 marked conjugated",
        lambda args: [(args[0] * 2).t()],
        lambda x: [(x * 2).t().conj()],
        complexes,
    ),
    Case(
        "out 0 created as MULTI_OUTPUT_NODE\nout 1 created as MULTI_OUTPUT_NODE",
        lambda args: [*(args[0] * 2).tensor_split([1])],
        lambda x: [*(x * 2).split([1, 2])],
        grads=(True,),
    ),
    Case(
        "out 0 created as MULTI_OUTPUT_NODE",
        lambda args: [args[0] * 2],
        lambda x: [(x * 2).split(3)[0]],
        grads=(True,),
    ),
    Case("out 0 created as DEFAULT", lambda args: [args[0] * 2], lambda x: [x * 2]),
    Case(
        "call tail takes in 0, out 1 gives out 0",
        lambda args: [None, args[0] * 2],
        lambda x: [x + x * 2, x * 2],
        functions={"tail": lambda x, part: [x + part]},
    ),
    Case(
        "call operators instead",
        lambda args: [args[0] * 2],
        lambda x: [x * 2],
        functions={"operators": lambda args: [args[0] * 3]},
    ),
    Case(
        "in 0 aligned\nout 0 counted with in 0\ncall shifted before\ncall listed before",
        lambda args: [flip(args[0])],
        lambda x: [(x + 1).t().detach()],
        functions={"shifted": lambda args: [args.pop() + 1], "listed": lambda args: [args.pop()]},
    ),
)


def describe(values: Sequence[Any]) -> list[Any]:
    """What a caller sees of values, the first of which are the inputs."""
    found: list[Any] = []
    tensors = [value for value in values if isinstance(value, Tensor)]
    for value in values:
        if not isinstance(value, Tensor):
            found.append((type(value), value))
            continue
        storage = value.untyped_storage().data_ptr()
        found.append(
            {
                "values": value.detach().resolve_conj().resolve_neg().tolist(),
                "strides": (value.shape, value.stride()),
                "marks": (value.is_neg(), value.is_conj()),
                "object": next(k for k, other in enumerate(tensors) if other is value),
                "memory": next(
                    k for k, other in enumerate(tensors) if other.untyped_storage().data_ptr() == storage
                ),
                "is_view": value._is_view(),
                "of": next((k for k, other in enumerate(tensors) if other is value._base), None),
                "made": str(torch._C._autograd._get_creation_meta(value)) if value._is_view() else "",
            }
        )
    for k, value in enumerate(tensors):
        # whose writes are counted with those to this one
        before = [other._version for other in tensors]
        with torch.no_grad():
            torch._C._autograd._unsafe_set_version_counter((value,), (1000 + k,))
        found.append([other._version != old for other, old in zip(tensors, before, strict=True)])
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.roles.replace("\n", "; "))
def test_a_role_is_as_in_eager_mode(case: Case) -> None:
    for recorded in case.grads:
        with torch.set_grad_enabled(recorded):
            given, expected = case.make(), case.make()
            text = f"takes 1{' gives 1' if 'set to' in case.roles else ''}\n{case.roles}\n"
            bound = bind_roles(case.program, text, case.functions)
            results = bound.call([given])
            assert isinstance(results, list)
            wanted = case.eager(expected)
            assert describe([given, *results]) == describe([expected, *wanted]), recorded


def test_every_role_has_a_case() -> None:
    acts = {row.act for case in CASES for row in parse_roles(f"takes 1\n{case.roles}\n").rows}
    assert acts == set(Act)


def test_operators_run_while_torch_transforms_calls() -> None:
    """What stands before the row does not see their results; what stands behind it does."""
    text = "takes 1\nin 0 aligned update\nout 0 constant 1.0\ncall operators instead\nout 1 is out 0\n"
    seen: list[str] = []

    def program(args: list[Any]) -> list[Any]:
        seen.append("program")
        return [args[0] * 2, None]

    def operators(args: list[Any]) -> list[Any]:
        seen.append("operators")
        return [args[0] * 2, None]

    call = bind_roles(program, text, {"operators": operators}).call
    with forward_ad.dual_level():
        value = forward_ad.make_dual(torch.ones(3), torch.ones(3))
        first, second = call([value])
        assert first is second and forward_ad.unpack_dual(first).tangent.tolist() == [2, 2, 2]
    assert call([torch.ones(3)]) == [1.0, 1.0]
    assert seen == ["operators", "program"]


def test_inputs_go_while_the_program_runs() -> None:
    """Only those that are asked for afterwards stay."""
    alive: list[int] = []

    def program(args: list[Any]) -> list[Any]:
        values = list(args)
        args.clear()
        alive.extend(sys.getrefcount(value) for value in values)
        return [value * 2 for value in values]

    call = bind_roles(program, "takes 2\nout 0 counted with in 1\nin 0 resolved\n", {}).call
    call([torch.ones(2), torch.ones(2)])
    assert alive[1] == alive[0] + 1


def test_what_makes_inputs_empties_the_list_and_takes_any_number() -> None:
    """Rows speak of what it makes, also where inputs are given one by one."""
    text = "takes 1\nout 1 is in 0\ncall joined before\n"

    def joined(args: list[Any]) -> list[Any]:
        values = list(args)
        args.clear()
        return [torch.cat(values)]

    call = bind_roles(lambda args: [args.pop() * 2, None], text, {"joined": joined}).call
    given = [torch.ones(1), torch.ones(2)]
    doubled, whole = call(given)
    assert given == [] and doubled.tolist() == [2, 2, 2] and whole.tolist() == [1, 1, 1]
    separate = bind_separate(lambda x: [x * 2, None], text, {"joined": joined})
    assert [value.tolist() for value in separate(torch.ones(1), torch.ones(1))] == [[2, 2], [1, 1]]
    with pytest.raises(ValueError, match="inputs of the caller"):
        bind_roles(separate, "takes 1\ncall joined before\nin 0 aligned\n", {"joined": joined})


def test_errors_leave_the_call_as_they_are() -> None:
    def program(args: list[Any]) -> list[Any]:
        raise LookupError("of the program")

    for text in ("takes 1\nin 0 aligned update\nout 0 detached\n", "takes 1\nout 0 is in 0\n"):
        bound = bind_roles(program, text, {})
        with pytest.raises(LookupError, match="of the program"):
            bound.call([unaligned()])
    with pytest.raises((AttributeError, TypeError)):
        bind_roles(lambda args: [3], "takes 0\nout 0 detached\n", {}).call([])
    with pytest.raises(KeyError):
        bind_roles(program, "takes 0\ncall tail takes out 0 gives out 0\n", {})
    with pytest.raises(ValueError, match="views as SIDEWAYS"):
        bind_roles(program, "takes 0\nout 0 created as SIDEWAYS\n", {})


def test_inputs_one_by_one() -> None:
    text = "takes 2\nout 0 view of out 0\nout 1 is out 0\n"

    def direct(*args: Tensor) -> list[Tensor]:
        return [args[0] + args[1], args[0]]

    bound = bind_roles(lambda args: direct(*args), text, {}, direct=direct)
    assert bound.direct is not None
    separate = bind_separate(direct, text, {})
    for call in (bound.direct, separate):
        first, second = call(torch.ones(2), torch.ones(2))
        assert first is second and first._is_view() and first.tolist() == [2, 2]
    changed = bind_roles(lambda args: direct(*args), f"{text}in 0 aligned update\n", {}, direct=direct)
    assert changed.direct is None


def test_nothing_to_do_leaves_the_call() -> None:
    def program(args: list[Any]) -> list[Any]:
        return args

    bound = bind_roles(program, "takes 1\n", {}, direct=program)
    assert bound.call is program and bound.direct is program
    assert bind_separate(program, "takes 1\n", {}) is program
    assert copy.copy(bound) == bound


@pytest.mark.parametrize("way", ["boxed", "direct", "separate"])
def test_donated_inputs_are_copied_while_a_graph_is_kept(way: str) -> None:
    """With their strides, and only in a backward that keeps its graph."""
    boxed = way == "boxed"
    seen = list[tuple[int, ...]]()

    def overwrite(value: Tensor) -> list[Tensor]:
        seen.append(value.stride())
        return [value.mul_(2)]

    text = "takes 1\nin 0 donated\n"
    bound = bind_roles(lambda args: overwrite(args.pop()), text, {}, direct=overwrite)
    call: Any = {"boxed": bound.call, "direct": bound.direct}.get(way) or bind_separate(overwrite, text, {})

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(torch.ones(3, 2).t())
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            (saved,) = ctx.saved_tensors
            (result,) = call([saved]) if boxed else call(saved)
            assert (result.data_ptr() == saved.data_ptr()) is (seen.count((1, 2)) == 3)
            return result.clone()

    x = torch.zeros(2, 3, requires_grad=True)
    double: Callable[[Tensor], Tensor] = Doubled.apply
    y = double(x)
    for is_kept in (True, True, False):
        (found,) = torch.autograd.grad(y.sum(), x, retain_graph=is_kept)
        assert found.eq(2).all()
    assert seen == [(1, 2)] * 3
    value = torch.ones(2)
    assert (call([value]) if boxed else call(value))[0] is value
