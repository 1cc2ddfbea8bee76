"""Equal computations are one kernel; results are the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys

from declared import schedule
from graph_builder import Builder, Compare

from coilwork_ir.index import Expr, symbol
from coilwork_ir.kernels import Kernel, KernelCall
from coilwork_ir.loops import Graph
from coilwork_ir.scalar import op
from coilwork_ir.target import get_target


def blocks(build: Builder, count: int, width: int = 8) -> Graph:
    """Repeated blocks: softmax of the sum of the last two results, an external call in between."""
    at = build.at
    build.input("x", 4, width)
    last = "x"
    for k in range(count):
        build.reduce(f"m{k}", "max", [4], [width], lambda i, r, s=last: at(s, i, r), op="aten.amax.default")
        build.pointwise(
            f"y{k}",
            [4, width],
            lambda i, j, s=last, k=k: op("exp", op("sub", at(s, i, j), at(f"m{k}", i))),
            op="aten.exp.default",
        )
        build.extern("test.neg", [f"y{k}"], [build.buffer(f"n{k}", 4, width)])
        last = f"n{k}"
    return build.graph(last)


def test_repeated_layers_share_their_kernel(build: Builder, compare: Compare) -> None:
    made = compare(blocks(build, 5), aligned_inputs=("x",))
    calls = [s for s in made.steps if isinstance(s, KernelCall)]
    assert len(calls) == 5
    assert len(made.kernels) == 1
    assert made.kernels[0].name.startswith("amax_exp_")


def test_names_of_buffers_ranges_and_sizes_do_not_matter(build: Builder) -> None:
    def kernel(prefix: str, size: Expr) -> Kernel:
        fresh = type(build)()
        fresh.input(prefix + "in", size, 4)
        fresh.pointwise(prefix + "out", [size, 4], lambda i, j: op("tanh", fresh.at(prefix + "in", i, j)))
        (made,) = schedule(fresh.graph(prefix + "out", symbols=(size,)), get_target("sm_90")).kernels
        return made

    assert kernel("a", symbol("s0", lo=2)) == kernel("b", symbol("s77", lo=2))
    assert kernel("a", symbol("s0", lo=2)) != kernel("b", symbol("s77", lo=0))


def test_kernel_names_differ_where_kernels_do(build: Builder, compare: Compare) -> None:
    build.input("x", 4)
    build.pointwise("y", [4], lambda i: op("tanh", build.at("x", i)), op="aten.tanh.default")
    build.extern("test.neg", ["y"], [build.buffer("n", 4)])
    build.pointwise("z", [4], lambda i: op("exp", build.at("n", i)), op="aten.tanh.default")
    names = [k.name for k in compare(build.graph("y", "z")).kernels]
    assert len(set(names)) == 2 and all(n.startswith("tanh_") for n in names)


PROGRAM = """
from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.loops import Graph, Pointwise, Reduce
from coilwork_ir.scalar import load, op
from coilwork_ir.target import get_target
from coilwork_scheduler import explain, schedule

F = DType.F32
shape = (symbol("s0", lo=2), symbol("s1", lo=2))
def buffer(name, extents):
    return Buffer(name=name, dtype=F, shape=extents, strides=make_contiguous_strides(extents))
i = tuple(symbol(f"i{k}", extent=e) for k, e in enumerate(shape))
r = symbol("r0", extent=shape[1])
inputs = tuple(buffer(f"x{k}", shape) for k in range(6))
nodes = []
for k in range(6):
    body = op("mul", load(f"x{k}", (i[0], r), F), load(f"x{(k + 1) % 6}", (i[0], r), F))
    nodes.append(Reduce(outputs=(buffer(f"m{k}", shape[:1]),), kind="sum", ranges=i[:1], axes=(r,), \
body=body))
for k in range(6):
    body = op("add", load(f"m{k}", i[:1], F), load(f"x{(k + 3) % 6}", i, F))
    nodes.append(Pointwise(output=buffer(f"y{k}", shape), ranges=i, body=body))
outputs = tuple(Ref(f"y{k}") for k in range(6))
made = schedule(Graph(name="g", symbols=shape, inputs=inputs, nodes=tuple(nodes), outputs=outputs), \
get_target("sm_90"))
print([(k.name, [a.name for a in k.args], [s.name for s in k.sizes]) for k in made.kernels])
print([(s.kernel, s.args, s.sizes) for s in made.steps])
print(explain(made.decisions))
"""


def test_the_hash_seed_changes_nothing() -> None:
    outputs = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert "fuse-" in outputs.pop()
