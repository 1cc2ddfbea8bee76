"""How calls of operators are planned: schemas, C functions that fit them, routes, and the reasons
for Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from coilwork_runtime import c_shim
from coilwork_runtime.c_shim import Schema, declarations, find_function_name, find_schema, parse_type
from coilwork_runtime.executor.call_plans import Route, make_callback, plan_call
from coilwork_runtime.executor.program_reader import Argument, RecordedCall, Size, Slot

X, Y = Slot(0, True), Slot(1, True)
INTEGERS = Slot(2, False)
QUANTIZED = Slot(3, False, is_quantized=True)


class Interface:
    """Every function is there, at one address."""

    def symbol(self, name: str) -> int:
        return 0x1000

    def code(self, name: str) -> int | None:
        return None if "sparse" in name else 6


def call(target: str, *args: Argument, device: str = "cpu", **kwargs: Argument) -> RecordedCall:
    return RecordedCall(target=target, args=args, kwargs=kwargs, device=device, wanted=1, single=True)


def schema(target: str) -> Schema:
    found = find_schema(target)
    assert found is not None
    return found


def test_types_and_schemas() -> None:
    assert str(parse_type("List[Optional[Tensor]]")) == "List[Optional[Tensor]]"
    assert str(parse_type("Optional[SymInt]")) == "Optional[int]"
    mm = schema("aten.mm.out")
    assert [p.name for p in mm.parameters] == ["self", "mat2", "out"] and mm.writes_in_place
    assert find_schema("aten.mm.nonsense") is None and find_schema("mm") is None


@pytest.mark.parametrize(
    ("target", "device", "symbol"),
    [
        ("aten.mm.out", "cpu", "aoti_torch_cpu_mm_out"),
        ("aten.mm.out", "cuda:1", "aoti_torch_cuda_mm_out"),
        ("aten.full.default", "cpu", "aoti_torch_aten_full"),
        ("aten.sort.stable", "cpu", "aoti_torch_cpu_sort_stable"),
        ("aten.exp.default", "cpu", None),
        # a list of booleans, and one that may be missing
        ("aten.convolution_backward.default", "cpu", "aoti_torch_cpu_convolution_backward"),
        (
            "aten._scaled_dot_product_efficient_attention_backward.default",
            "cuda:0",
            "aoti_torch_cuda__scaled_dot_product_efficient_attention_backward",
        ),
    ],
)
def test_c_functions_are_those_that_torch_declares(target: str, device: str, symbol: str | None) -> None:
    assert find_function_name(schema(target), device) == symbol


def test_a_function_with_other_parameters_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an operator's schema grows, its C function of an older form must not be called."""
    changed: Mapping[str, tuple[str, ...]] = {
        name: (*kinds, "int32_t") for name, kinds in declarations("cpu").items()
    }
    monkeypatch.setattr(c_shim, "declarations", lambda kind: changed if kind == "cpu" else {})
    assert find_function_name(schema("aten.mm.out"), "cpu") is None


@pytest.mark.parametrize(
    ("made", "route"),
    [
        (call("aten.mm.out", X, Y, out=X), Route.FUNCTION),
        (call("aten.addmm.out", X, X, Y, beta=1, alpha=2, out=X), Route.FUNCTION),
        (call("aten.add.Tensor", X, Y, alpha=2.5), Route.FUNCTION),
        # an integer as a double would make floats of integers
        (call("aten.add.Tensor", INTEGERS, INTEGERS, alpha=2), Route.PYTHON),
        # which refuses a truth value, and not the double that it would be
        (call("aten.add.Tensor", X, Y, alpha=True), Route.PYTHON),
        (call("aten.mul.Scalar", X, 1 << 60), Route.PYTHON),
        (call("aten.full.default", [2, Size(0)], 7, dtype=torch.int64), Route.FUNCTION),
        (call("aten.full.default", [2], 7), Route.PYTHON),
        (call("aten.exp.default", X), Route.DISPATCHER),
        (
            call(
                "aten.convolution_backward.default",
                X,
                X,
                Y,
                [3],
                [1],
                [0],
                [1],
                False,
                [0],
                1,
                [True, True, False],
            ),
            Route.FUNCTION,
        ),
        (call("aten._local_scalar_dense.default", X), Route.ITEM),
        (call("aten.clamp.default", X, 0), Route.PYTHON),
        (call("prims.convert_element_type.default", X, torch.float64), Route.PYTHON),
        (call("nowhere.nothing.default", X), Route.PYTHON),
        # functions of a device are not the kernels of quantised tensors
        (call("aten.cat.default", [X, X]), Route.FUNCTION),
        (call("aten.cat.default", [QUANTIZED, QUANTIZED]), Route.DISPATCHER),
        # results of several types, which torch's C dispatcher mixes up
        (call("aten._batch_norm_impl_index.default", X, X, X, X, X, True, 0.1, 1e-5, True), Route.PYTHON),
        (call("aten.mm.out", X, out=X), Route.PYTHON),
        (call("aten.exp.default", X, wrong=1), Route.PYTHON),
    ],
)
def test_each_call_takes_the_shortest_route_that_it_may(made: RecordedCall, route: Route) -> None:
    plan = plan_call(made, Interface())
    assert plan.route is route and plan.data[0] == route
    assert bool(plan.reason) is (route is Route.PYTHON)


def test_without_the_function_the_dispatcher_is_called() -> None:
    class Without(Interface):
        def symbol(self, name: str) -> int:
            return 0

    assert plan_call(call("aten.mm.out", X, Y, out=X), Without()).route is Route.DISPATCHER


def test_callbacks_call_with_tensors_and_sizes_in_order() -> None:
    made = call("aten.narrow.default", X, 0, Size(3), Size(1))
    x = torch.arange(6.0)
    assert make_callback(made)([x], [1, 2]).tolist() == [1.0, 2.0]
    listed = replace(call("aten.cat.default", [X, Y, X], dim=0), kwargs={"dim": 0})
    assert make_callback(listed)([x[:1], x[1:2], x[2:3]], []).tolist() == [0.0, 1.0, 2.0]
    typed: Any = make_callback(call("aten.full.default", [2], float("inf"), dtype=torch.float64))([], [])
    assert typed.tolist() == [float("inf")] * 2 and typed.dtype is torch.float64
