"""Which products in 16 bits are kernels that compute what follows, and which are left to a library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import pytest
from declared import ScheduleFields, schedule

from coilwork_ir.kernels import KernelCall, Schedule
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Extern
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.scalar import find_contractions
from coilwork_ir.target import TARGETS
from coilwork_scheduler import ScheduleOptions


def product(output: str, left: str, right: str, shape: tuple[int, ...]) -> str:
    """`output [.., m, n] = left [.., m, k] @ right [.., k, n]` in bf16; `shape` is (.., m, n, k)."""
    *outer, terms = shape
    ranges = [f"i{k}" for k in range(len(outer))]
    before, row, column = ranges[:-2], ranges[-2], ranges[-1]
    domain = ", ".join(f"{r}: {size}" for r, size in zip(ranges, outer, strict=True))
    return f"""  %{output}: bf16{list(outer)} = contract f32 [{domain} | r0: {terms}] {{
    t0 = load %{left}[{", ".join((*before, row, "r0"))}] : bf16
    t1 = load %{right}[{", ".join((*before, "r0", column))}] : bf16
    t2 = parameter 0 : f32
    t3 = cast(t2) : bf16
    multiply t0, t1
    yield t3
  }}
"""


def pointwise(output: str, op: str, operands: tuple[str, ...], shape: tuple[int, ...]) -> str:
    """`output = op(*operands)`, element by element."""
    domain = ", ".join(f"i{k}: {size}" for k, size in enumerate(shape))
    at = ", ".join(f"i{k}" for k in range(len(shape)))
    lines, values = [], []
    for number, name in enumerate(operands):
        lines += [f"    t{2 * number} = load %{name}[{at}] : bf16"]
        lines += [f"    t{2 * number + 1} = cast(t{2 * number}) : f32"]
        values.append(f"t{2 * number + 1}")
    lines += [f"    t8 = {op}({', '.join(values)})", "    t9 = cast(t8) : bf16", "    yield t9"]
    text = "\n".join(lines)
    return f"  %{output}: bf16{list(shape)} = pointwise [{domain}] {{\n{text}\n  }}\n"


def row_sums(output: str, source: str, rows: int, columns: int) -> str:
    return f"""  (%{output}: f32[{rows}]) = reduce sum [i0: {rows} | r0: {columns}] {{
    t0 = load %{source}[i0, r0] : bf16
    t1 = cast(t0) : f32
    yield t1
  }}
"""


def planned(
    nodes: str,
    inputs: Mapping[str, tuple[int, ...]],
    returned: str,
    target: str = "sm_90",
    **options: Unpack[ScheduleFields],
) -> Schedule:
    head = "".join(f"  input %{name}: bf16{list(shape)}\n" for name, shape in inputs.items())
    graph = parse_graph(f"graph @g {{\n{head}{nodes}  return ({returned})\n}}\n")
    verify_graph(graph)
    made = schedule(graph, TARGETS[target], ScheduleOptions(**options))
    verify_schedule(made)
    return made


def steps(made: Schedule) -> list[str]:
    """Each step: the operator that is called, or `products` with the number of those in a kernel."""
    kernels = {kernel.name: kernel for kernel in made.kernels}
    found = []
    for step in made.steps:
        if isinstance(step, Extern):
            found.append(step.target.split(".")[1])
        elif isinstance(step, KernelCall):
            found.append(f"products {len(find_contractions(list_kernel_roots(kernels[step.kernel])))}")
    return found


M, N, K = 8192, 4096, 272
SIDES = {"x": (M, K), "w": (K, N)}
FOLLOWED = product("y", "x", "w", (M, N, K)) + pointwise("z", "abs", ("y",), (M, N))


def test_what_follows_a_product_is_computed_by_its_kernel() -> None:
    made = planned(FOLLOWED, SIDES, "%z")
    assert steps(made) == ["products 1"]
    (decision,) = [one for one in made.decisions if one.rule == "contraction"]
    assert decision.accepted and decision.reason == "what follows needs no kernel of its own"
    assert {"kernel_us", "saved_us", "call_us"} <= set(dict(decision.numbers))


@pytest.mark.parametrize(
    ("target", "options"),
    [("sm_80", {}), ("sm_90", {"numerics": "eager"}), ("sm_90", {"contractions": "aten"})],
    ids=["no copy engine", "rounded as by eager", "calls asked for"],
)
def test_elsewhere_it_is_a_call_and_a_kernel(target: str, options: ScheduleFields) -> None:
    assert steps(planned(FOLLOWED, SIDES, "%z", target, **options)) == ["mm", "products 0"]


def test_a_product_that_nothing_follows_is_a_call() -> None:
    assert steps(planned(product("y", "x", "w", (M, N, K)), SIDES, "%y")) == ["mm"]


def test_what_goes_into_a_reduction_stays_with_that() -> None:
    nodes = FOLLOWED + row_sums("s", "z", M, N)
    assert steps(planned(nodes, SIDES, "%s")) == ["mm", "products 0"]
    # a result that is stored besides is worth the product's kernel
    assert steps(planned(nodes, SIDES, "%s, %z")) == ["products 1", "products 0"]


@pytest.mark.parametrize(("operation", "expected"), [("abs", ["products 1"]), ("erf", ["mm", "products 0"])])
def test_a_long_product_is_a_library_s_unless_little_follows(operation: str, expected: list[str]) -> None:
    size, terms = 8192, 6144
    nodes = product("y", "x", "w", (size, size, terms)) + pointwise("z", operation, ("y",), (size, size))
    made = planned(nodes, {"x": (size, terms), "w": (terms, size)}, "%z")
    assert steps(made) == expected


def test_many_small_products_are_one_kernel() -> None:
    shape = (1024, 128, 128)
    nodes = product("y", "x", "w", (*shape, 128)) + pointwise("z", "abs", ("y",), shape)
    assert steps(planned(nodes, {"x": shape, "w": shape}, "%z")) == ["products 1"]


def gated(right: str, names: tuple[str, str] = ("x", "x")) -> str:
    """`abs(left @ w) * (other @ right)`, where `names` are those of the two left factors."""
    shape = (M, 2560, 640)
    nodes = product("y", names[0], "w", shape) + product("u", names[1], right, shape)
    nodes += pointwise("t", "abs", ("y",), shape[:2])
    return nodes + pointwise("z", "mul", ("t", "u"), shape[:2])


def test_a_gate_and_what_it_gates_are_one_kernel() -> None:
    made = planned(gated("v"), {"x": (M, 640), "w": (640, 2560), "v": (640, 2560)}, "%z")
    assert steps(made) == ["products 2"]
    found = [dict(one.numbers) for one in made.decisions if one.rule == "contraction" and one.accepted]
    assert [numbers["sums"] for numbers in found] == [2, 2] and found[0] == found[1]


def test_of_products_without_a_common_factor_the_last_has_the_epilogue() -> None:
    inputs = {"x": (M, 640), "h": (M, 640), "w": (640, 2560), "v": (640, 2560)}
    made = planned(gated("v", ("x", "h")), inputs, "%z")
    assert steps(made) == ["mm", "products 1"]


def test_an_epilogue_that_waits_for_another_reader_stays_apart() -> None:
    """Row sums of the result are needed by what would be its epilogue."""
    nodes = product("y", "x", "w", (M, N, K)) + row_sums("s", "y", M, N)
    nodes += f"""  %z: bf16[{M}, {N}] = pointwise [i0: {M}, i1: {N}] {{
    t0 = load %y[i0, i1] : bf16
    t1 = cast(t0) : f32
    t2 = load %s[i0] : f32
    t3 = sub(t1, t2)
    t4 = cast(t3) : bf16
    yield t4
  }}
"""
    assert steps(planned(nodes, SIDES, "%z"))[0] == "mm"


def test_what_is_padded_is_stored_for_the_copy_engine() -> None:
    """A factor that a kernel computes is read in whole blocks, whatever computing it again costs."""
    nodes = pointwise("p", "abs", ("x",), (M, K)) + product("y", "p", "w", (M, N, K))
    nodes += pointwise("z", "abs", ("y",), (M, N))
    made = planned(nodes, SIDES, "%z")
    assert steps(made) == ["products 0", "products 1"]


def test_a_small_product_is_a_library_s() -> None:
    """A call takes 3 us, whose tiles are small; a kernel takes longer to begin."""
    nodes = product("y", "x", "w", (512, 512, 512)) + pointwise("z", "abs", ("y",), (512, 512))
    made = planned(nodes, {"x": (512, 512), "w": (512, 512)}, "%z")
    assert steps(made) == ["mm", "products 0"]


@pytest.mark.parametrize(
    ("operation", "expected"), [("abs", ["products 1"]), ("erf", ["mm", "products 0"])], ids=["few", "many"]
)
def test_operations_on_what_is_loaded_wait_for_it(operation: str, expected: list[str]) -> None:
    """Groups of warps that take turns hide operations on sums alone: a gradient of GELU is no epilogue."""
    shape, terms = (8192, 3072), 768
    nodes = product("y", "x", "w", (*shape, terms)) + pointwise("g", operation, ("h",), shape)
    nodes += pointwise("f", operation, ("g",), shape) + pointwise("z", "mul", ("y", "f"), shape)
    inputs = {"x": (shape[0], terms), "w": (terms, shape[1]), "h": shape}
    made = planned(nodes, inputs, "%z")
    assert steps(made) == expected


def test_a_copy_to_heads_is_no_epilogue() -> None:
    """It takes rows and columns apart, and no kernel multiplies at its rate so."""
    rows, columns, terms = 4096, 1024, 1024
    nodes = product("y", "x", "w", (rows, columns, terms))
    nodes += """  %z: bf16[2, 16, 2048, 64] = pointwise [i0: 2, i1: 16, i2: 2048, i3: 64] {
    t0 = load %y[2048*i0 + i2, 64*i1 + i3] : bf16
    yield t0
  }
"""
    made = planned(nodes, {"x": (rows, terms), "w": (terms, columns)}, "%z")
    assert steps(made) == ["mm", "products 0"]
