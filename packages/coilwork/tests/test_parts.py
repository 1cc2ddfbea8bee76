"""Graphs that no one program computes: their parts are compiled, and Python makes the calls between them."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._higher_order_ops import cond, while_loop
from torch._higher_order_ops import print as say
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_functional
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

from coilwork import compile_graph
from coilwork.backend import resolve
from coilwork.errors import CoilworkFallbackWarning
from coilwork_tools.explain.report import CompileReport

LOGGED: list[str] = []
NARROW = (torch.uint3, torch.uint4, torch.uint6, torch.int3, torch.int5)


@torch.library.custom_op("coilwork_parts::log", mutates_args=())
def log(text: str) -> None:
    LOGGED.append(text)


@log.register_fake
def _(text: str) -> None:
    return None


_register_effectful_op(torch.ops.coilwork_parts.log.default, _EffectType.ORDERED)


@torch.library.custom_op("coilwork_parts::unpack", mutates_args=())
def unpack(packed: Tensor) -> Tensor:
    return packed.view(torch.uint8).clone().view(2, 4).t()


@unpack.register_fake
def _(packed: Tensor) -> Tensor:
    return packed.new_empty((4, 2), dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class Program:
    """`run`, what it is given, and the calls that Python makes in its graphs."""

    run: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    called: tuple[str, ...]
    trains: bool = False
    dynamic: bool | None = None


def _loop(x: Tensor) -> Tensor:
    return while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y.sin()), (torch.tensor(0), x * 2))[1].cos()


def _loop_until(x: Tensor, w: Tensor) -> Tensor:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, (y @ w).tanh() + y

    found = while_loop(lambda i, y: (i < 7) & (y.sum() < 100), body, (torch.tensor(0), x.exp()))
    return found[1] * 2


def _loop_in_branch(x: Tensor) -> Tensor:
    def loop(y: Tensor) -> Tensor:
        start = torch.zeros((), dtype=torch.int64)
        return while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z.sin()), (start, y))[1]

    return cond(x.sum() > 0, loop, torch.cos, (x,)) + 1


def _printing(x: Tensor) -> Tensor:
    say("first {}", 1)
    y = x.sin() * 2
    say("second {}", y)
    return y.cos() + x.shape[0]


def _printing_while_training(x: Tensor) -> Tensor:
    y = x.sin() * 2
    say("between {}", 3)
    return y.cos() + 1


def _writing_around_prints(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.t()
    x.add_(1)
    say("written {}", x)
    x.mul_(y.sum())
    say("again {}", x)
    return x.sin(), y


def _views_across(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    turned = y.t()
    say("made {}", y)
    return turned.sin(), y[1:], turned


def _sizes_across(x: Tensor) -> tuple[Tensor, int]:
    chosen = x[x > 0]
    say("chosen {}", chosen)
    return (chosen * 2).sin(), chosen.shape[0] + 1


def _drawing_across(x: Tensor) -> Tensor:
    first = torch.rand_like(x)
    say("drawn {}", 1)
    return first - torch.rand_like(x) + x.sin()


def _effects_of_two_kinds(x: Tensor) -> Tensor:
    torch.ops.coilwork_parts.log("first")
    say("second {}", 2)
    torch.ops.coilwork_parts.log("third")
    y = x.sin()
    say("fourth {}", 4)
    torch.ops.coilwork_parts.log("fifth")
    return y.cos()


def _drawing_loop(x: Tensor) -> Tensor:
    def step(number: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return number + 1, value.sin() + torch.rand(4).sin() * 0

    last: Tensor = while_loop(lambda number, value: number < 3, step, (torch.tensor(0), x))[1]
    return last


def _narrow_type_between(x: Tensor) -> Tensor:
    packed = (x * 10).to(torch.uint8).view(torch.uint4)
    return packed.view(torch.uint8) + 1


def _narrow_type_given(packed: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return packed, packed.view(torch.uint8).float() * x.sin()


def _narrow_type_trained_beside(x: Tensor, packed: Tensor) -> Tensor:
    return (packed.view(torch.uint8).float() * x.sin()).cos()


def _narrow_type_made() -> Tensor:
    return torch.empty(4, dtype=torch.int3).view(torch.uint8) * 0


def _shapes_alone(x: Tensor, shaped: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin() * (shaped * 2).shape[0], shaped + 1


def _shapes_made(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin() * 2, torch.empty(4, device="meta") + 1


def _branches_of_two_sizes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x.sin() * 2
    ends = [cond(p, lambda: y[:3] * 2, lambda: y[1:].exp()) for p in ((x > 0).any(), (x > 9).any())]
    return ends[0] * 2, ends[1].cos(), y + 1


def _branches_that_select(x: Tensor) -> Tensor:
    y = x.sin() * 2

    def inner() -> Tensor:
        return cond(x.sum() > 99, lambda: y[y > 1] * 3, lambda: y[y > 0])

    return cond(x.sum() < 99, inner, lambda: y[y < 0].cos()) * 2


def _random(*shape: int, trains: bool = False) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(3)).sub(0.3).requires_grad_(trains)


def _bytes(dtype: torch.dtype) -> Tensor:
    return torch.arange(8, dtype=torch.uint8).view(dtype)


PROGRAMS = {
    "a loop with gradients": Program(_loop, lambda: (_random(4, trains=True),), (), trains=True),
    "open sizes in it": Program(_loop, lambda: (_random(6, trains=True),), (), trains=True, dynamic=True),
    "data ends it": Program(
        _loop_until, lambda: (_random(4, trains=True), _random(4, 4, trains=True)), (), trains=True
    ),
    "a loop in a branch": Program(_loop_in_branch, lambda: (_random(4, trains=True),), (), trains=True),
    "a loop that draws": Program(
        _drawing_loop, lambda: (_random(4, trains=True),), ("while_loop_stack_output",), trains=True
    ),
    "prints": Program(_printing, lambda: (_random(4),), ("print", "print")),
    "prints, open sizes": Program(_printing, lambda: (_random(4),), ("print", "print"), dynamic=True),
    "prints in training": Program(
        _printing_while_training, lambda: (_random(4, trains=True),), ("print",), trains=True
    ),
    "writes around prints": Program(_writing_around_prints, lambda: (_random(3, 3),), ("print", "print")),
    "views across a print": Program(_views_across, lambda: (_random(3, 4),), ("print",)),
    "sizes from data across a print": Program(_sizes_across, lambda: (_random(9),), ("print",)),
    "random numbers across a print": Program(_drawing_across, lambda: (_random(9),), ("print",)),
    "effects of two kinds": Program(_effects_of_two_kinds, lambda: (_random(4),), ("print", "print")),
    "a narrow type between": Program(_narrow_type_between, lambda: (_random(8).abs(),), ("view",) * 2),
    "a narrow type given": Program(_narrow_type_given, lambda: (_bytes(torch.uint3), _random(8)), ("view",)),
    "a narrow type in training": Program(
        _narrow_type_trained_beside,
        lambda: (_random(8, trains=True), _bytes(torch.uint4)),
        ("view",),
        trains=True,
    ),
    "a narrow type made": Program(_narrow_type_made, lambda: (), ("empty", "view")),
    "branches of two sizes": Program(_branches_of_two_sizes, lambda: (_random(6),), ("cond", "cond")),
    "branches that select": Program(
        _branches_that_select, lambda: (_random(8, trains=True),), ("cond",), trains=True
    ),
    "a meta tensor given": Program(
        _shapes_alone, lambda: (_random(4), torch.empty(3, device="meta")), ("add",)
    ),
    "a meta tensor made": Program(_shapes_made, lambda: (_random(4),), ()),
}


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CompileReport]]:
    """Reports of the graphs that AOTAutograd asked for."""
    found: list[CompileReport] = []
    backend = sys.modules["coilwork.backend"]
    plain = compile_graph.compile_graph

    def recording(*args: Any, **settings: Any) -> Any:
        made = plain(*args, **settings)
        found.append(made.report)
        return made

    monkeypatch.setattr(backend, "compile_graph", recording)
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield found


def outcome(
    run: Callable[..., Any], program: Program, capfd: pytest.CaptureFixture[str]
) -> tuple[list[Any], list[str], str]:
    """Results, inputs and gradients; what was logged; and what was printed."""
    LOGGED.clear()
    capfd.readouterr()
    torch.manual_seed(5)
    given = program.make()
    results = run(*given)
    values = list(results) if isinstance(results, tuple) else [results]
    if program.trains:
        values[0].sin().sum().backward()
    gradients = [one.grad for one in given if program.trains]
    return [*values, *given, *gradients], list(LOGGED), capfd.readouterr().out


@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_do_what_eager_does(
    name: str, reports: list[CompileReport], capfd: pytest.CaptureFixture[str]
) -> None:
    program = PROGRAMS[name]
    torch._dynamo.reset()
    wanted = outcome(program.run, program, capfd)
    torch._dynamo.reset()
    options = {"strict": True, "random": "eager"} if "random" in name else {"strict": True}
    compiled = torch.compile(
        program.run, backend="coilwork", fullgraph=True, dynamic=program.dynamic, options=options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", CoilworkFallbackWarning)
        for _ in range(2):
            found = outcome(compiled, program, capfd)
            assert found[1:] == wanted[1:]
            assert_same(found[0], wanted[0])
    called = [call["op"] for report in reports for call in report.called]
    names = [op.removeprefix("aten.").partition(".")[0] for op in called]
    assert [one for one in names if one != "detach"][: len(program.called)] == list(program.called)
    assert not any(report.fallback for report in reports)


def assert_same(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if not isinstance(one, Tensor):
            assert one == other
            continue
        assert (one.dtype, one.device, one.shape, one.stride()) == (
            other.dtype,
            other.device,
            other.shape,
            other.stride(),
        )
        if one.device.type != "meta":
            is_narrow = one.dtype in NARROW
            both = (one.view(torch.uint8), other.view(torch.uint8)) if is_narrow else (one, other)
            torch.testing.assert_close(*both)


def test_a_kernel_of_the_users_is_called_between_parts(reports: list[CompileReport]) -> None:
    """Torch launches it; here a stand-in that computes in torch, since there may be no GPU."""

    class Kernel:
        arg_names = ("x", "out", "factor")

        def __getitem__(self, grid: object) -> Callable[..., None]:
            def launch(*values: Any, **named: Any) -> None:
                given = {**dict(zip(self.arg_names, values, strict=False)), **named}
                given["out"].copy_(given["x"] * given["factor"])

            return launch

    aten, graph = torch.ops.aten, torch.fx.Graph()
    x = graph.placeholder("x")
    sine, out = (
        graph.call_function(aten.sin.default, (x,)),
        graph.call_function(aten.empty_like.default, (x,)),
    )
    wrapped = graph.call_function(
        triton_kernel_wrapper_functional,
        kwargs={
            "kernel_idx": kernel_side_table.add_kernel(Kernel()),
            "constant_args_idx": kernel_side_table.add_constant_args({"factor": 3}),
            "grid": [(1, 1, 1)],
            "tma_descriptor_metadata": {},
            "kwargs": {"x": sine, "out": out},
            "tensors_to_clone": ["out"],
        },
    )
    written = graph.call_function(operator.getitem, (wrapped, "out"))
    result = graph.call_function(aten.mul.Tensor, (written, 2))
    graph.output((result,))
    with FakeTensorMode():
        for node in (x, sine, out, written, result):
            node.meta["val"] = torch.empty(4)
        wrapped.meta["val"] = {"out": torch.empty(4)}
    value = _random(4)
    compiled = compile_graph.compile_graph(
        torch.fx.GraphModule(torch.nn.Module(), graph),
        [value],
        role="inference",
        options=resolve(mode=None, options={"strict": True}),
    )
    torch.testing.assert_close(compiled([value])[0], value.sin() * 6)
    assert [call["op"] for call in compiled.report.called] == ["triton_kernel_wrapper_functional"]
    assert compiled.report.kernels >= 2


def test_a_call_may_return_other_strides_than_captured(reports: list[CompileReport]) -> None:
    def program(packed: Tensor) -> Tensor:
        return torch.ops.coilwork_parts.unpack(packed) * 2 + 1

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="coilwork", fullgraph=True, options={"strict": True})
    packed = _bytes(torch.uint6)
    torch.testing.assert_close(compiled(packed), program(packed))
    assert [call["op"] for call in reports[0].called] == ["coilwork_parts.unpack.default"]


def test_a_part_overwrites_inputs_behind_all_that_reads_them(reports: list[CompileReport]) -> None:
    def program(x: Tensor, packed: Tensor) -> Tensor:
        before = packed.view(torch.uint8) + x
        x.add_(5)
        return before + x

    torch._dynamo.reset()
    results = []
    for run in (program, torch.compile(program, backend="coilwork", options={"strict": True})):
        x = torch.arange(8, dtype=torch.uint8)
        results.append((run(x, _bytes(torch.int5)), x))
    assert_same(results[1], results[0])
    assert reports[0].called


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceMesh]:
    path = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.FileStore(str(path), 1))
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
def test_a_mesh_is_handed_through(trains: bool, mesh: DeviceMesh, reports: list[CompileReport]) -> None:
    def program(x: Any, w: Any) -> Any:
        return (x @ w.t()).relu().redistribute(placements=[Replicate()]) * 2

    def run(call: Callable[..., Any]) -> list[Tensor]:
        w = distribute_tensor(_random(4, 4), mesh, [Shard(0)]).requires_grad_(trains)
        result = call(distribute_tensor(_random(3, 4), mesh, [Replicate()]), w)
        assert isinstance(result, DTensor)
        values = [result.to_local()]
        if trains:
            values[0].sin().sum().backward()
            values.append(w.grad.to_local())
        return values

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="coilwork", fullgraph=True, options={"strict": True})
    assert_same(run(compiled), run(program))
    assert len(reports) == 1 + trains
    for report in reports:
        assert report.kernels or report.extern_calls
        assert not report.called and not report.fallback


def test_equal_meshes_in_one_process(mesh: DeviceMesh, reports: list[CompileReport]) -> None:
    """Torch finds meshes by equality; results lie on the inputs' mesh, and not on that of the tangents."""

    def program(x: Any, w: Any) -> Any:
        return (x @ w).relu()

    def run(call: Callable[..., Any]) -> list[Tensor]:
        given = [
            distribute_tensor(_random(4, 4), init_device_mesh("cpu", (1,)), [Shard(0)]).requires_grad_()
            for _ in range(2)
        ]
        result = call(*given)
        result.to_local().sin().sum().backward()
        return [result.to_local(), *(one.grad.to_local() for one in given)]

    torch._dynamo.reset()
    wanted = run(program)
    compiled = torch.compile(program, backend="coilwork", fullgraph=True, options={"strict": True})
    for _ in range(2):
        assert_same(run(compiled), wanted)
    assert [report.role for report in reports] == ["forward", "backward"]


def test_objects_that_the_code_names(mesh: DeviceMesh, reports: list[CompileReport]) -> None:
    def program(x: Tensor, place: Any) -> tuple[Any, Any]:
        return x.sin() * 2, place

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="coilwork", options={"strict": True})
    x, place = _random(4), Shard(0)
    result, found = compiled(x, place)
    assert found == place
    torch.testing.assert_close(result, x.sin() * 2)
