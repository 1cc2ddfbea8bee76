"""Operators that go on after their calls: the table of them, and what lowering says of them and puts between
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.variables.streams
import torch.distributed
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.loops import Contraction, Extern, Graph, Pointwise
from coilwork_ir.loops.verify import verify_graph
from coilwork_lowering import lower
from coilwork_lowering.facts.alias_analysis import communicates, get_flight, is_barrier, is_wait, may_retain
from coilwork_lowering.rewrites.clean_up import merge_common_subexpressions

ops: Any = torch.ops._c10d_functional


def overloads(namespace: str) -> list[Any]:
    """Every operator of `namespace` that this torch has."""
    names = {s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith(f"{namespace}::")}
    return [getattr(getattr(torch.ops, namespace), name.split("::")[1]).default for name in sorted(names)]


def test_the_table_names_arguments_that_are_there() -> None:
    found = overloads("_c10d_functional")
    assert len(found) > 10
    for target in found:
        flight = get_flight(target)
        assert (flight is None) == is_wait(target), target
        if flight is not None:
            arguments = {argument.name for argument in target._schema.arguments}
            assert arguments >= {*flight.uses, *flight.writes}, target


def test_what_is_not_in_the_table() -> None:
    """A collective uses all it is given, another library may keep it, ATen does neither."""
    library = torch.library.Library("coilwork_test_library", "DEF")
    library.define("operator(Tensor x) -> Tensor")
    unknown = torch.library.Library("_c10d_functional", "FRAGMENT")
    unknown.define("coilwork_test(Tensor left, Tensor right) -> Tensor")
    streams = torch.library.Library("streams", "FRAGMENT")
    streams.define("coilwork_test() -> ()")
    flight = get_flight(ops.coilwork_test.default)
    assert flight is not None and flight.uses == ("left", "right")
    assert may_retain(torch.ops.coilwork_test_library.operator.default, {})
    assert not may_retain(torch.ops.aten.mm.default, {}) and get_flight(torch.ops.aten.mm.default) is None
    assert is_barrier(torch.ops.streams.coilwork_test.default)
    assert not is_barrier(ops.wait_tensor.default)


def lowered(function: Callable[..., Any]) -> Graph:
    graph = lower(make_fx(function, tracing_mode="fake")(torch.ones(4, 4)), name="graph").graph
    verify_graph(graph)
    return graph


def calls(graph: Graph) -> dict[str, Extern]:
    """The last call of each operator."""
    return {node.target.split(".")[1]: node for node in graph.nodes if isinstance(node, Extern)}


def positions(graph: Graph, operator: str) -> list[int]:
    return [
        k for k, n in enumerate(graph.nodes) if isinstance(n, Extern) and n.target.split(".")[1] == operator
    ]


def test_a_gather_uses_its_operand_until_the_wait_for_its_result() -> None:
    def function(x: Tensor) -> Any:
        g = ops.all_gather_into_tensor(x @ x, 2, "0")
        return ops.wait_tensor(g.view(-1)) + 1

    found = calls(lowered(function))
    start, wait = found["all_gather_into_tensor"], found["wait_tensor"]
    (result,) = [output.name for output in start.outputs if isinstance(output, Buffer)]
    given = start.args[0]
    assert isinstance(given, Ref) and start.in_flight == (given.name, result) and start.until == (result,)
    assert wait.waits[0] == result and wait.mutates[0].source == result


def test_a_sum_works_in_a_copy() -> None:
    start = calls(lowered(lambda x: ops.wait_tensor(ops.all_reduce(x @ x, "sum", "0"))))["all_reduce"]
    assert len(start.in_flight) == 1 and start.in_flight == start.until


def overwrites_an_input(x: Tensor) -> Any:
    g = ops.all_gather_into_tensor(x, 2, "0")
    y = x.cos()
    x.copy_(y + 1)
    return ops.wait_tensor(g)


def reads_without_a_wait(x: Tensor) -> Any:
    g = ops.all_gather_into_tensor(x, 2, "0")
    return torch.logcumsumexp(g, 0), ops.wait_tensor(g)


def returns_it_in_another_layout(x: Tensor) -> Any:
    # torch describes what a sum of several makes as lying as its operand does; it makes it contiguous
    return ops.all_reduce_coalesced([x.t()], "sum", "0")


@pytest.mark.parametrize(
    "function, behind",
    [
        (overwrites_an_input, "pointwise"),
        (reads_without_a_wait, "start"),
        (returns_it_in_another_layout, "start"),
    ],
)
def test_a_wait_comes_before_what_cannot_go_before_it(function: Callable[..., Any], behind: str) -> None:
    graph = lowered(function)
    (wait,) = positions(graph, "wait_tensor")
    before = graph.nodes[wait - 1]
    assert isinstance(before, Extern if behind == "start" else Pointwise)
    # it is the last moment
    assert len(graph.nodes) > wait + 1


def test_views_and_other_starts_need_no_wait() -> None:
    def function(x: Tensor) -> Any:
        g = ops.all_gather_into_tensor(x, 2, "0")
        h = ops.all_gather_into_tensor(x, 2, "0")
        part = g.view(-1)[2:]
        y = x.cos()
        return ops.wait_tensor(part), ops.wait_tensor(h), y

    graph = lowered(function)
    assert len(positions(graph, "wait_tensor")) == 2
    assert min(positions(graph, "wait_tensor")) > max(positions(graph, "all_gather_into_tensor"))


def test_updates_of_what_is_in_flight_are_copies() -> None:
    def function(x: Tensor) -> Any:
        z = x @ x
        g = ops.all_gather_into_tensor(z, 2, "0")
        return torch.index_put(z, (torch.tensor([1]),), x[0]), ops.wait_tensor(g)

    gm = make_fx(function, tracing_mode="fake")(torch.ones(4, 4))
    (update,) = lower(gm, name="graph").updates
    assert update.reason == "an operator still uses it"


def test_host_memory_of_copies_that_do_not_block_is_nobody_elses() -> None:
    def function(x: Tensor) -> Any:
        made = torch.empty(4, 4, pin_memory=True)
        there = (x @ x).to("cuda:0", non_blocking=True)
        return there, (x @ x).to("cuda:0"), (there + 1).to("cpu", non_blocking=True), made

    with FakeTensorMode():
        gm = make_fx(function)(torch.ones(4, 4))
    graph = lower(gm, name="graph").graph
    verify_graph(graph)
    kept = [n.retains for n in graph.nodes if isinstance(n, Extern) and "_to_copy" in n.target]
    assert kept == [True, False, True]
    # memory of a program's own is not pinned
    assert any(isinstance(n, Extern) and n.target == "aten.empty.memory_format" for n in graph.nodes)


def test_values_that_calls_receive_into_stay_apart() -> None:
    """Equal zeros are one value until something is received into one of them."""

    def function(x: Tensor) -> Any:
        zeros, first, second, again = (torch.zeros(4, 4) for _ in range(4))
        g = ops.irecv(first, 0, 0, "0")
        h, _ = ops.batch_p2p_ops(["irecv", "isend"], [0, 0], [0, 0], [second, x], "0")
        return ops.wait_tensor(g), ops.wait_tensor(h), zeros + x, again * x

    gm = make_fx(function, tracing_mode="fake")(torch.ones(4, 4))
    merge_common_subexpressions(gm.graph)
    made = [node for node in gm.graph.nodes if "zeros" in str(node.target)]
    assert len(made) == 3


def test_what_is_received_into_a_part_is_waited_for_there() -> None:
    def function(x: Tensor) -> Any:
        rows = torch.zeros(4, 4)
        g = ops.irecv(rows[1:3], 0, 0, "0")
        u = x.cos()
        ops.wait_tensor(g)
        return rows + u

    graph = lowered(function)
    received = calls(graph)["irecv"]
    given = received.args[0]
    assert isinstance(given, Ref) and received.until == (given.name,)
    assert calls(graph)["wait_tensor"].waits


def test_what_is_sent_keeps_its_memory() -> None:
    """Torch notes the operation at the operand as well, and nothing takes that away."""
    assert calls(lowered(lambda x: ops.wait_tensor(ops.isend(x @ x, 1, 0, "0"))))["isend"].retains


def test_waits_for_streams_stand_where_they_stood() -> None:
    """AOTAutograd ties them, by `control_deps`, to what stands around them, and to each other."""

    def function(x: Tensor) -> Any:
        z = x @ x
        torch.ops.streams.record_event(5, 1)
        torch.ops.streams.wait_event(5, 2)
        u = z.cos() @ x
        torch.ops.streams.record_event(6, 2)
        torch.ops.streams.wait_event(6, 1)
        return u + z

    graphs: list[Graph] = []

    def compile_graph(gm: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(lower(gm, name="graph").graph)
        # there are no events of these numbers
        return make_boxed_func(lambda *args: [args[0]])

    backend = aot_autograd(fw_compiler=compile_graph)
    torch.compile(function, backend=backend, fullgraph=True)(torch.ones(4, 4))
    (graph,) = graphs
    verify_graph(graph)
    order = [
        "product" if isinstance(n, Contraction) else n.target.split(".")[1]
        for n in graph.nodes
        if isinstance(n, Contraction | Extern)
    ]
    assert order == ["product", "record_event", "wait_event", "product", "record_event", "wait_event"]


def test_calls_in_a_process_group_keep_their_order() -> None:
    """Also those that wait by themselves, and return a tensor as any other operator does."""
    library = torch.library.Library("coilwork_test_ranks", "DEF")
    library.define("exchange(Tensor x, str group_name) -> Tensor")
    library.define("compute(Tensor x, str name) -> Tensor")
    for name in ("exchange", "compute"):
        library.impl(name, lambda x, name: torch.empty_like(x), "Meta")
    made: Any = torch.ops.coilwork_test_ranks

    def function(x: Tensor) -> Any:
        return made.exchange(x, "0"), made.compute(x, "0")

    found = [node for node in lowered(function).nodes if isinstance(node, Extern)]
    assert [(call.target.split(".")[1], call.effect) for call in found] == [
        ("exchange", True),
        ("compute", False),
    ]
    assert communicates(ops.all_reduce.default) and not communicates(torch.ops.aten.mm.default)
