"""Calls that eager refuses and on which compiling fails: eager's error, without a word of the compiler's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from coilwork import compile_graph
from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning
from coilwork_frontend.capture.eager_trial import EagerTrial
from coilwork_frontend.capture.runtime_checks import check_values

Program = Callable[..., object]


def compiled(function: Program, *, strict: bool, dynamic: bool = False) -> Program:
    torch._dynamo.reset()
    options = {"strict": strict, "cache": False}
    return torch.compile(function, backend=backend, options=options, dynamic=dynamic)


@contextmanager
def broken_stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A compiler that compiles nothing."""

    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("a fault of the compiler's")

    with monkeypatch.context() as patch:
        patch.setattr(compile_graph, "run_stages", fail)
        yield


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_eagers_error_is_raised_where_compiling_fails(
    strict: bool, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(x: Tensor) -> Tensor:
        return nn.functional.embedding(x.round().long(), torch.ones(3, 2)) * 2

    x = torch.tensor([0.0, 7.0])
    with broken_stages(monkeypatch), warnings.catch_warnings():
        warnings.simplefilter("error", CoilworkFallbackWarning)
        run = compiled(function, strict=strict, dynamic=dynamic)
        for _ in range(2):
            with pytest.raises(IndexError, match="index out of range in self"):
                run(x)


def test_a_good_call_that_follows_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> Tensor:
        return nn.functional.embedding(x.round().long(), torch.ones(3, 2)) * 2

    for strict in (False, True):
        with broken_stages(monkeypatch):
            run = compiled(function, strict=strict)
            with pytest.raises(IndexError):
                run(torch.tensor([0.0, 7.0]))
            if strict:
                with pytest.raises(Exception, match="a fault of the compiler's"):
                    run(torch.tensor([0.0, 2.0]))
                continue
            with pytest.warns(CoilworkFallbackWarning, match="a fault of the compiler's"):
                assert torch.equal(run(torch.tensor([0.0, 2.0])), torch.full((2, 2), 2.0))


def test_faults_of_the_compiler_are_still_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.get_rng_state()
    x = torch.ones(3)
    with broken_stages(monkeypatch), pytest.raises(Exception, match="a fault of the compiler's"):
        compiled(lambda x: x.add_(torch.rand(3)), strict=True)(x)
    assert torch.equal(x, torch.ones(3))
    assert torch.equal(numbers, torch.get_rng_state())


def test_the_users_operators_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    library = torch.library.Library("coilwork_refused_calls", "FRAGMENT")
    library.define("count(Tensor x) -> Tensor")
    library.impl("count", lambda x: calls.append(1) or x.clone(), "CompositeExplicitAutograd")
    torch.library.register_fake("coilwork_refused_calls::count", torch.empty_like, lib=library)
    with broken_stages(monkeypatch), pytest.raises(Exception, match="a fault of the compiler's"):
        compiled(torch.ops.coilwork_refused_calls.count, strict=True)(torch.ones(2))
    assert calls == []


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
def test_what_tracing_refuses_otherwise_is_eagers_to_refuse() -> None:
    for strict in (False, True):
        run = compiled(lambda x: x.add_(x, alpha=1j), strict=strict)
        with pytest.raises(RuntimeError, match="must not be a complex number"):
            run(torch.ones(2))


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_that_a_tensor_cannot_hold(dynamic: bool) -> None:
    """Tracing takes them, with `aot_eager` as well."""
    x, z = torch.ones(3, 3), torch.ones(3, 3, dtype=torch.complex64)
    programs: tuple[Program, ...] = (
        lambda x: torch.amax(x, 0, out=torch.empty(3, dtype=torch.float64)),
        lambda x: torch.any(x, 0, out=torch.empty(3, dtype=torch.int64)),
        lambda x: x.clone().add_(z),
        lambda x: x.long().mul_(x),
    )
    for program in programs:
        with pytest.raises(RuntimeError) as wanted:
            program(x)
        with pytest.raises(RuntimeError) as found:
            compiled(program, strict=True, dynamic=dynamic)(x)
        assert found.type is wanted.type


def test_results_that_a_tensor_can_hold() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        into = torch.empty(3, dtype=torch.float64)
        return torch.sum(x, 0, out=into), x.double().add_(x), torch.add(x, x, out=torch.empty(3, 3))

    x = torch.randn(3, 3)
    found = compiled(program, strict=True)(x)
    assert isinstance(found, tuple)
    for one, other in zip(found, program(x), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
def test_types_that_are_taken_apart_whatever_they_are() -> None:
    """Torch's own tracing takes these calls apart before it asks for a type."""
    images = torch.ones(1, 3, 4, 4, dtype=torch.int64)
    programs: tuple[Program, ...] = (
        lambda x: nn.functional.interpolate(x, size=(3, 3), mode="bilinear"),
        lambda x: nn.functional.interpolate(x, size=(3, 3), mode="bicubic"),
        lambda x: nn.functional.interpolate(x[0], size=3, mode="linear"),
        lambda x: nn.functional.interpolate(x, size=(3, 3), mode="nearest"),
        lambda x: nn.functional.interpolate(x[0], scale_factor=2, mode="nearest-exact"),
        lambda x: torch.ops.aten.upsample_nearest2d(x, [3, 3]),
        lambda x: nn.functional.max_pool1d(x[0], 2),
    )
    for program in programs:
        with pytest.raises(NotImplementedError):
            program(images)
        with pytest.raises(NotImplementedError):
            compiled(program, strict=True)(images)


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
@pytest.mark.parametrize("dynamic", [False, True])
def test_classes_of_other_types(dynamic: bool) -> None:
    for dtype in (torch.int8, torch.int32, torch.float32):
        for program in (lambda k: nn.functional.one_hot(k, 4) + 1, lambda k: torch.ops.aten.one_hot(k, 4)):
            with pytest.raises(RuntimeError, match="only applicable to index tensor"):
                compiled(program, strict=True, dynamic=dynamic)(torch.ones(2, dtype=dtype))
    classes = torch.tensor([0, 3])
    found = compiled(lambda k: nn.functional.one_hot(k, 4), strict=True, dynamic=dynamic)(classes)
    assert isinstance(found, Tensor) and torch.equal(found, nn.functional.one_hot(classes, 4))


def shifted(x: Tensor) -> Tensor:
    y = x * 1
    y[1:] = y[:-1]
    return y


def moved_in_columns(x: Tensor) -> Tensor:
    y = x * 1
    y[:, :2] = y[:, 1:]
    return y


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
@pytest.mark.parametrize("dynamic", [False, True])
def test_writes_to_memory_that_is_read(dynamic: bool) -> None:
    refused: tuple[Program, ...] = (
        lambda x: x[1:].add_(x[:-1]),
        lambda x: x.view(-1)[1:].copy_(x.view(-1)[:-1]),
        lambda x: x.expand(2, 3, 3).add_(1),
        lambda x: x.add_(x.t()),
        lambda x: torch.add(x[1:], 1, out=x[:-1]),
        shifted,
    )
    taken: tuple[Program, ...] = (
        lambda x: x.add_(x),
        lambda x: x.expand(2, 3, 3).fill_(2.0),
        lambda x: x[:1].add_(x[1:2]),
        moved_in_columns,
    )
    for program in refused:
        with pytest.raises(RuntimeError, match="to a single memory location"):
            program(torch.ones(3, 3))
        for strict in (False, True):
            with pytest.raises(RuntimeError, match="to a single memory location"):
                compiled(program, strict=strict, dynamic=dynamic)(torch.ones(3, 3))
    for program in taken:
        x, y = torch.arange(9.0).view(3, 3), torch.arange(9.0).view(3, 3)
        torch.testing.assert_close(compiled(program, strict=True, dynamic=dynamic)(x), program(y))
        torch.testing.assert_close(x, y)


def test_writes_to_repeated_elements() -> None:
    """Eager writes the same element several times; traced by torch it gets what each of its copies gained."""

    def filled(x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 1).expand(2, 3)
        return y.fill_(2.0), x.broadcast_to(2, 3).expand(4, 2, 3).zero_()

    found, wanted = torch.arange(3.0), torch.arange(3.0)
    torch.testing.assert_close(compiled(filled, strict=True)(found), filled(wanted))
    torch.testing.assert_close(found, wanted)


def _write_to_one_of_several_rows(x: Tensor) -> Tensor:
    x.expand(2, 3)[0].add_(1.0)
    return x * 2


def _write_in_the_middle(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = y.expand(4, 2, 3)
    z[1, 0, 1:].mul_(3)
    z[2].select(1, 0).add_(1)
    return y, z + 1


def _write_to_each(x: Tensor) -> Tensor:
    y = x * 1
    for row in y.expand(3, 3).unbind(0):
        row.add_(1)
    return y


def _assign(x: Tensor) -> Tensor:
    y = x.clone()
    y.expand(4, 3)[1] = 7.0
    y.expand(4, 3)[2, 1:] = x[1:] * 9
    return y


def _fill_views(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 1
    filled = y.expand(4, 3)[:2].fill_(4.0)
    y.expand(2, 3)[:, 1].zero_()
    return y, filled


def _write_results(x: Tensor) -> Tensor:
    y = x * 1
    torch.add(x, 1, out=y.expand(2, 3)[1])
    y.expand(4, x.shape[0])[1].add_(x)
    return y


def _fill_by_a_mask(x: Tensor) -> Tensor:
    return x.expand(2, 3).masked_fill_(torch.stack((x > 1, x == 0)), 5.0)


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        *(_write_to_one_of_several_rows, _write_in_the_middle, _write_to_each, _assign),
        *(_fill_views, _write_results, _fill_by_a_mask),
    ],
)
def test_views_of_expansions_are_written_to(program: Program, dynamic: bool) -> None:
    """Traced by torch an element gets what each of its copies gained; here it is written once."""
    given = torch.arange(6.0).reshape(2, 3) if program is _write_in_the_middle else torch.arange(3.0)
    found, wanted = given.clone(), given.clone()
    torch.testing.assert_close(compiled(program, strict=True, dynamic=dynamic)(found), program(wanted))
    torch.testing.assert_close(found, wanted)


def assigned(x: Tensor, k: Tensor) -> Tensor:
    x[0] = 5.0
    return x[1] + k.sum()


def copied(x: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    x[0].copy_(k)
    x[1].mul_(3.0)
    return x.cos(), x


def filled(x: Tensor, k: Tensor) -> Tensor:
    x.masked_fill_(x > 1, 0.0)
    x.t()[1:].fill_(4.0)
    return x + k


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
def test_an_input_that_is_expanded_already() -> None:
    def base(rows: int) -> Tensor:
        return torch.arange(8.0)[1:4].expand(rows, 3)

    for program in (assigned, copied, filled):
        torch._dynamo.reset()
        ours = compiled(program, strict=True)
        for _ in range(2):
            found, wanted, k = base(2), base(2), torch.arange(3.0)
            torch.testing.assert_close(ours(found, k), program(wanted, k))
            torch.testing.assert_close(found.untyped_storage().tolist(), wanted.untyped_storage().tolist())
            assert found.stride() == wanted.stride()


def test_an_input_that_is_expanded_and_asks_for_gradients() -> None:
    def program(x: Tensor) -> Tensor:
        x[0].add_(1.0)
        return x * 2

    def given() -> Tensor:
        return (torch.arange(3.0).requires_grad_() * 1).expand(2, 3)

    found, wanted = given(), given()
    with pytest.raises(Exception, match="repeated-elements"):
        compiled(program, strict=True)(found)
    with pytest.warns(CoilworkFallbackWarning, match="before it is expanded"):
        result = compiled(program, strict=False)(found)
    torch.testing.assert_close(result, program(wanted))
    torch.testing.assert_close(found, wanted)


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
def test_numbers_of_later_calls_that_fit_no_float() -> None:
    """Code for a number that each call gives anew is not for one that eager's kernel cannot convert."""
    programs: dict[str, Callable[[Tensor, float], Tensor]] = {
        "leaky_relu": lambda x, s: nn.functional.leaky_relu(x, s),
        "its gradient": lambda x, s: torch.ops.aten.leaky_relu_backward(x, x, s, False),
        "threshold": lambda x, s: nn.functional.threshold(x, s, 1.0),
        "softplus": lambda x, s: nn.functional.softplus(x, s),
        "celu": lambda x, s: nn.functional.celu(x, s),
        "elu": lambda x, s: nn.functional.elu(x, s),
        "fill": lambda x, s: torch.full_like(x, s),
        "masked_fill": lambda x, s: x.masked_fill(x > 0.5, s),
        "add": lambda x, s: torch.add(x, x, alpha=s),
        "addmm": lambda x, s: torch.addmm(x, x, x, alpha=s),
        "baddbmm": lambda x, s: torch.baddbmm(x[None], x[None], x[None], beta=s),
        "mul": lambda x, s: x * s,
        "integers": lambda x, s: torch.full_like(x.to(torch.int8), int(s)),
    }
    x = torch.linspace(-1, 1, 9).reshape(3, 3)
    for name, program in programs.items():
        ours = compiled(program, strict=True, dynamic=True)
        for number in (0.25, 3.0, 1e19, 1e39, -1e300, 0.5):
            wanted = outcome(program, x, number)
            found = outcome(ours, x, number)
            assert type(found) is type(wanted), (name, number, found, wanted)
            if isinstance(wanted, Tensor):
                torch.testing.assert_close(found, wanted, equal_nan=True)
            else:
                assert "without overflow" in str(wanted) or isinstance(wanted, OverflowError)


def outcome(program: Program, *given: object) -> object:
    try:
        return program(*given)
    except (RuntimeError, OverflowError) as error:
        return getattr(error, "inner_exception", error)


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
@pytest.mark.parametrize("dynamic", [False, True])
def test_scaled_products_of_integers(dynamic: bool) -> None:
    """Eager divides none by `addcdiv`, and adds no fractions of their products."""
    refused: tuple[Program, ...] = (
        lambda x: torch.addcdiv(x, x, x + 1, value=2),
        lambda x: torch.addcdiv(x.float(), x, x + 1, value=2),
        lambda x: x.addcdiv_(x, x + 1, value=2),
    )
    for program in refused:
        with pytest.raises(RuntimeError, match="Integer division with addcdiv"):
            compiled(program, strict=True, dynamic=dynamic)(torch.arange(3))
    taken: tuple[Program, ...] = (
        lambda x: x.addcmul_(x, x, value=2.5),
        lambda x: torch.addcmul(x, x, x, value=2),
        lambda x: torch.add(x, torch.mul(torch.div(x, x + 1), 2)),
    )
    for program in taken:
        found, wanted = torch.arange(3), torch.arange(3)
        torch.testing.assert_close(compiled(program, strict=True, dynamic=dynamic)(found), program(wanted))
        torch.testing.assert_close(found, wanted)


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
def test_images_without_elements_and_long_windows() -> None:
    resize = nn.functional.interpolate
    programs: tuple[tuple[Program, Tensor], ...] = (
        (lambda x: resize(x, scale_factor=0.1), torch.ones(1, 1, 4, 4)),
        (lambda x: resize(x, scale_factor=0.1, mode="bilinear"), torch.ones(1, 1, 4, 4)),
        (lambda x: resize(x, size=4), torch.ones(1, 1, 0)),
        (lambda x: resize(x, size=(4, 4), mode="bicubic"), torch.ones(1, 0, 4, 4)),
        (lambda x: nn.functional.upsample(x, (4, 5)), torch.ones(2, 3, 8, 8, dtype=torch.int64)),
        (lambda x: nn.functional.max_pool1d(x, 2, 2**40, return_indices=True), torch.ones(1, 1, 4)),
        (nn.functional.hardshrink, torch.ones(3, dtype=torch.int64)),
        (lambda x: x.put_(torch.tensor([0]), torch.ones(1)), torch.empty(0)),
    )
    for program, given in programs:
        with pytest.raises(Exception) as wanted:
            program(given.clone())
        with pytest.raises(wanted.type):
            compiled(program, strict=True)(given.clone())
    taken = torch.ones(0, 1, 4, 4)
    assert compiled(lambda x: resize(x, size=(2, 2)), strict=True)(taken).shape == (0, 1, 2, 2)


def test_inputs_that_lie_in_one_place() -> None:
    def program(given: tuple[Tensor, Tensor]) -> Tensor:
        return given[0].add_(given[1])

    rows, repeated = torch.ones(4, 3), torch.ones(3).expand(2, 3)
    for given in ((rows[1:], rows[:-1]), (repeated, torch.ones(3))):
        with pytest.raises(RuntimeError, match="to a single memory location"):
            compiled(program, strict=True)(given)
    assert torch.equal(rows, torch.ones(4, 3))


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
@pytest.mark.parametrize("dynamic", [False, True])
def test_values_that_tracing_does_not_see(dynamic: bool) -> None:
    """Each program is given what eager takes, too, by the same compiled call."""
    row = torch.arange(4.0)
    classes = torch.tensor([0, 3])
    programs: tuple[tuple[Program, Tensor, tuple[Tensor, ...]], ...] = (
        (lambda x: nn.functional.one_hot(x, 4) * 2, classes, (classes + 1, classes - 1)),
        (lambda x: torch.ops.aten.one_hot(x + 1, num_classes=4), classes - 1, (classes, classes - 2)),
        (lambda x: torch.quantile(row, x), row / 4, (row - 0.1, row + 0.01, row * float("nan"))),
        (lambda x: row.nanquantile(q=x * 2), row / 8, (row, -row)),
    )
    for program, good, bad in programs:
        run = compiled(program, strict=True, dynamic=dynamic)
        torch.testing.assert_close(run(good), program(good))
        for given in bad:
            with pytest.raises(RuntimeError):
                program(given)
            with pytest.raises(RuntimeError):
                run(given)


def test_classes_on_a_gpu_are_looked_up() -> None:
    graph = torch.fx.Graph()
    classes = graph.placeholder("classes")
    with FakeTensorMode():
        classes.meta["example_value"] = torch.empty(2, dtype=torch.int64, device="cuda")
    graph.output(graph.call_function(nn.functional.one_hot, (classes, 4)))
    gm = torch.fx.GraphModule({}, graph)
    check_values(gm)
    targets = [node.target for node in gm.graph.nodes]
    assert targets.index(torch.index_select) < targets.index(nn.functional.one_hot)
    assert classes not in next(n for n in gm.graph.nodes if n.target is nn.functional.one_hot).args


@pytest.mark.parametrize("first", [0.5, 2.0])
def test_a_float_that_a_later_call_changes(first: float) -> None:
    def program(x: Tensor, alpha: float) -> Tensor:
        return nn.functional.celu(x, alpha)

    run = compiled(program, strict=True, dynamic=True)
    x = torch.linspace(-2.0, 2.0, 5)
    torch.testing.assert_close(run(x, first), program(x, first))
    with pytest.raises(RuntimeError, match="alpha cannot be 0"):
        run(x, 0.0)


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
@pytest.mark.parametrize("dynamic", [False, True])
def test_more_than_a_tensor_holds(dynamic: bool) -> None:
    larger = torch.ones(2, 3)
    programs: tuple[Program, ...] = (
        lambda x: x.clamp_(larger),
        lambda x: x.pow_(larger),
        lambda x: x.copysign_(larger[None]),
    )
    for program in programs:
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            compiled(program, strict=True, dynamic=dynamic)(torch.ones(3))


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
def test_sums_in_the_place_of_truth_values() -> None:
    for dtype in (torch.bool, torch.uint16):
        for program in (lambda x: x.cumsum_(0), lambda x: x.clone().cumprod_(0)):
            with pytest.raises(NotImplementedError):
                compiled(program, strict=True)(torch.ones(3, dtype=dtype))
    with pytest.raises(RuntimeError, match="can't be cast"):
        compiled(lambda x: x.logit_(0.2), strict=True)(torch.ones(3, dtype=torch.int64))


def leaf(*shape: int, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, device=device, dtype=dtype).requires_grad_()


# programs of which eager gives results, and refuses the gradient
REFUSED_GRADIENTS: tuple[tuple[Program, Callable[[], tuple[Tensor, ...]]], ...] = (
    (lambda a, x: torch.special.gammainc(a, x) * 2, lambda: (leaf(3), leaf(3))),
    (lambda a: torch.linalg.ldl_factor(a + torch.eye(3))[0], lambda: (leaf(3, 3),)),
    (lambda a, b: torch.logaddexp(a, b), lambda: (leaf(3), torch.ones(3, dtype=torch.complex64))),
    (lambda a, w: nn.functional.conv2d(a, w), lambda: (leaf(1, 1, 4, 4), leaf(1, 1, 2, 2, device="meta"))),
    (lambda a, w: nn.functional.conv2d(a, w), lambda: (leaf(1, 1, 4, 4, device="meta"), leaf(1, 1, 2, 2))),
)


MIXED: dict[str, tuple[Program, tuple[torch.dtype, torch.dtype]]] = {
    "huber_loss of bits": (nn.functional.huber_loss, (torch.float32, torch.bool)),
    "huber_loss of integers": (nn.functional.huber_loss, (torch.float32, torch.int32)),
    "soft_margin_loss of bits": (nn.functional.soft_margin_loss, (torch.float32, torch.bool)),
    "soft_margin_loss of uint16": (nn.functional.soft_margin_loss, (torch.float32, torch.uint16)),
    "dropout's gradient": (
        lambda g, mask: torch.ops.aten.native_dropout_backward(g, mask, 0.5),
        (torch.float32, torch.complex64),
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_gradients_of_types_that_eager_refuses(name: str) -> None:
    function, types = MIXED[name]

    def train(call: Program) -> None:
        first, second = (torch.ones(5).to(dtype) for dtype in types)
        found: Any = call(first.requires_grad_(), second)
        torch.autograd.backward([found], [torch.ones_like(found)])

    with pytest.raises((RuntimeError, NotImplementedError)) as refused:
        train(function)
    with pytest.raises(refused.type) as error:
        train(compiled(function, strict=True))
    assert str(error.value).split("\n")[0] == str(refused.value).split("\n")[0]


_WIDE, _MOST = 1 << 40, (1 << 63) - 1
# programs that torch's meta functions take, with gradients: eager's kernels refuse them, or their gradients
ONLY_KERNELS: dict[str, tuple[Program, Callable[[], tuple[Tensor, ...]]]] = {
    "huber_loss of a wider target": (
        nn.functional.huber_loss,
        lambda: (leaf(5, dtype=torch.float16), torch.ones(5)),
    ),
    "huber_loss, not reduced": (
        lambda x, y: nn.functional.huber_loss(x, y, reduction="none"),
        lambda: (leaf(5), torch.ones(5, dtype=torch.float64)),
    ),
    "strides of an image's one row": (
        lambda x: nn.functional.max_pool2d(x, (1, 3), (_WIDE, 2)),
        lambda: (leaf(1, 2, 1, 3),),
    ),
    "positions in an image's one row": (
        lambda x: torch.ops.aten.max_pool2d_with_indices(x, [1, 3], [1, 1], [0, 0], [_WIDE, 1])[0],
        lambda: (leaf(1, 2, 1, 3),),
    ),
    "the bias of a group norm without a weight": (
        lambda x, bias: nn.functional.group_norm(x, 2, None, bias),
        lambda: (leaf(1, 6, 3), leaf(6)),
    ),
    "pixels of nothing shuffled": (nn.PixelShuffle(2), lambda: (leaf(0, 8, 2, 2),)),
    "pixels of nothing put back": (nn.PixelUnshuffle(2), lambda: (leaf(0, 3, 6, 6),)),
    "windows of no size": (
        lambda x: nn.functional.fractional_max_pool2d(x, -1, output_size=[2, 3]),
        lambda: (leaf(1, 3, 9, 9),),
    ),
    "rows of an empty table": (
        lambda w: torch.ops.aten.embedding(w, torch.tensor([0])),
        lambda: (leaf(0, 5),),
    ),
    "places of nothing filled": (
        lambda x: x.index_fill(0, torch.tensor([0]), torch.ones(())),
        lambda: (leaf(0),),
    ),
    "distances in a row": (torch.ops.aten._pdist_forward, lambda: (leaf(1),)),
}


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ONLY_KERNELS)
def test_what_only_eagers_kernels_refuse(name: str, strict: bool) -> None:
    program, make = ONLY_KERNELS[name]

    def train(call: Program) -> None:
        found: Any = call(*make())
        torch.autograd.backward([found], [torch.ones_like(found)])

    with pytest.raises((RuntimeError, IndexError)) as refused:
        train(program)
    with pytest.raises(refused.type) as error:
        train(compiled(program, strict=strict))
    assert str(error.value) == str(refused.value)


LATER_NUMBERS: dict[str, tuple[Program, int, tuple[int, ...]]] = {
    "a size": (lambda x, n: torch.ops.aten.zeros([2, n]) + x[0, 0], 3, (_MOST,)),
    "a repetition": (lambda x, n: x.repeat(n, 1), 2, (_MOST,)),
    "a border": (lambda x, n: nn.functional.pad(x, [n, 2]), 1, (_MOST,)),
    "a row": (lambda x, n: torch.select_scatter(x, x[0], 1, n), 2, (_MOST, 4, -5)),
    "a shift": (lambda x, n: torch.roll(x, [n, 1], [0, 1]), 2, (-_MOST - 1,)),
    "a shift of all": (lambda x, n: torch.roll(x, n), 2, (-_MOST - 1,)),
}


@pytest.mark.parametrize("executor", ["native", "python"])
def test_numbers_of_later_calls_that_eager_refuses(executor: str) -> None:
    """Of open sizes, the code of a good call gets to the bad ones."""
    x = torch.arange(16.0).reshape(4, 4)
    options = {"strict": True, "executor": executor}
    for name, (program, good, bad) in LATER_NUMBERS.items():
        torch._dynamo.reset()
        run = torch.compile(program, backend="coilwork", options=options, dynamic=True)
        torch.testing.assert_close(run(x, good), program(x, good))
        for number in bad:
            with pytest.raises((RuntimeError, IndexError)) as refused:
                program(x, number)
            with pytest.raises(Exception) as error:
                run(x, number)
            assert error.type is refused.type, name
        torch.testing.assert_close(run(x, good), program(x, good))


def test_what_is_beside_those_is_compiled() -> None:
    pooled, image = torch.randn(2, 5), torch.randn(2, 8, 4, 4)
    given: tuple[tuple[Program, tuple[Tensor, ...]], ...] = (
        (lambda x: nn.functional.max_pool1d(x, 2, _WIDE), (pooled,)),
        (lambda x: nn.functional.pixel_shuffle(x, 2) * 2, (image,)),
        (lambda x: nn.functional.pixel_unshuffle(x[:0], 2), (image,)),
        (lambda x, y: nn.functional.huber_loss(x, y) + 1, (pooled, pooled.double())),
        (lambda x: nn.functional.group_norm(x, 2, torch.ones(8), torch.ones(8)), (image,)),
        (lambda x: torch.ops.aten._pdist_forward(x, 1.0), (pooled[None],)),
    )
    for program, operands in given:
        expected = program(*operands)
        torch.testing.assert_close(compiled(program, strict=True)(*operands), expected)


@pytest.mark.parametrize("strict", [False, True])
def test_operands_without_memory_beside_others_are_eagers(strict: bool) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.margin_ranking_loss(x, y, y)

    run = compiled(function, strict=strict)
    x = torch.ones((), device="meta", requires_grad=True)
    for call in (function, run):
        found: Any = call(x, torch.ones(()).requires_grad_())
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
            found.backward()


@pytest.mark.parametrize("decimals", [400, -400, (1 << 63) - 1])
def test_more_digits_than_floats_have(decimals: int) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.round(x, decimals=decimals)

    x = torch.tensor([1.25, -3.0])
    torch.testing.assert_close(compiled(function, strict=True)(x), function(x), equal_nan=True)


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
@pytest.mark.parametrize("strict", [False, True])
def test_gradients_that_eager_refuses(strict: bool) -> None:
    for program, make in REFUSED_GRADIENTS:
        torch._dynamo.reset()
        messages = []
        for run in (program, compiled(program, strict=strict)):
            result: Any = run(*make())
            with pytest.raises((RuntimeError, NotImplementedError)) as caught:
                result.backward(torch.ones_like(result))
            messages.append((caught.type, str(caught.value)))
        assert messages[0] == messages[1]


def test_only_gradients_that_are_recorded_are_tried() -> None:
    def underivable(a: Tensor, x: Tensor) -> Tensor:
        return torch.special.gammainc(a, x)

    given = [leaf(3), leaf(3)]
    assert not EagerTrial(fx.symbolic_trace(lambda x: x.sin()), [leaf(3)]).refuses_training()
    trial = EagerTrial(fx.symbolic_trace(underivable), given)
    assert trial.refuses_training() and not trial.refuses()
    assert all(x.grad is None for x in given)
    with torch.no_grad():
        assert not EagerTrial(fx.symbolic_trace(underivable), given).refuses_training()
    assert not EagerTrial(fx.symbolic_trace(underivable), [x.detach() for x in given]).refuses_training()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_offsets_of_bags_below_zero(mode: str) -> None:
    def combine(weight: Tensor, offsets: Tensor) -> Tensor:
        found: Tensor = nn.functional.embedding_bag(torch.arange(4), weight, offsets, mode=mode)
        return found

    # eager's kernel for sums reads what lies before the indices
    expected = RuntimeError if mode == "sum" else IndexError
    for weight in (torch.ones(5, 3), leaf(5, 3)):
        torch._dynamo.reset()
        with pytest.raises(expected, match="offsets of bags"):
            compiled(combine, strict=True)(weight, torch.tensor([0, -2]))
        with pytest.raises(expected):
            combine(weight, torch.tensor([0, 9, 4]))


def plane_gradient(grad: Tensor, target: Tensor, reduction: int) -> Tensor:
    scores, total = torch.ones(4, 2, 1, 2), torch.ones(())
    backward = torch.ops.aten.nll_loss2d_backward
    found: Tensor = backward(grad, scores, target, None, reduction, 1, total)
    return found


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
def test_gradients_that_are_called_directly() -> None:
    ours = compiled(plane_gradient, strict=True)
    ones, labels = torch.ones(4, 1, 2), torch.zeros(4, 1, 2, dtype=torch.int64)
    torch.testing.assert_close(ours(ones, labels, 0), plane_gradient(ones, labels, 0))
    for given in ((torch.ones(8), labels, 0), (ones, labels.bool(), 0), (ones, labels, 1)):
        with pytest.raises(RuntimeError) as expected:
            plane_gradient(*given)
        with pytest.raises(RuntimeError) as found:
            ours(*given)
        assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("list_indices", [torch.tril_indices, torch.triu_indices])
def test_offsets_of_triangles_that_overflow(list_indices: Program) -> None:
    def positions(x: Tensor, offset: int) -> Any:
        found: Any = list_indices(20, 21, offset)
        return found + x

    one = torch.ones((), dtype=torch.int64)
    for offset in ((1 << 63) - 1, 3, -(1 << 40)):
        results = []
        for run in (positions, compiled(positions, strict=True)):
            try:
                results.append(run(one, offset).tolist())
            except RuntimeError:
                results.append(RuntimeError)
        assert results[0] == results[1]
