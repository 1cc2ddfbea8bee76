"""How the time of scheduling and of memory planning grows with the size of the graph.

Usage: python benchmarks/scheduler_scaling.py [--sizes 1000 5000 ...] [--graphs chain ...] [--collector]
[--json]

Four shapes of graph: a chain of pointwise operations, a wide graph in which all operations read one input,
layers of a transformer-like block (norms, activations, residuals, external products) that repeat, and the
same where the stream between the layers is captured across its rows, so that the pass over layouts moves all
of it. Prints Markdown, or JSON. Seconds are processor time, which other processes do not lengthen; the
garbage collector of cycles pauses meanwhile, as it does while Coilwork compiles, unless `--collector` is
given. No device is needed.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from coilwork.registries import find_codegen
from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.emission import declare_capabilities
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, Reduce
from coilwork_ir.scalar import Scalar, const, load, op
from coilwork_ir.target import Targets, get_target
from coilwork_scheduler import schedule
from coilwork_scheduler.memory import plan

F32 = DType.F32
ROWS, COLUMNS = as_expr(1024), as_expr(768)
RANGES = (symbol("i0", extent=ROWS), symbol("i1", extent=COLUMNS))
AXIS = symbol("r0", extent=COLUMNS)


def buffer(name: str, *shape: Expr) -> Buffer:
    return Buffer(name=name, dtype=F32, shape=shape, strides=make_contiguous_strides(shape))


def pointwise(name: str, body: Scalar, *, is_across: bool = False) -> Pointwise:
    made = buffer(name, ROWS, COLUMNS)
    if is_across:
        made = replace(made, strides=(as_expr(1), ROWS))
    return Pointwise(output=made, ranges=RANGES, body=body)


def load_at(name: str) -> Scalar:
    return load(name, RANGES, F32)


def chain(count: int) -> Graph:
    nodes: list[Node] = []
    last = "x"
    for k in range(count):
        nodes.append(pointwise(f"c{k}", op("add", op("mul", load_at(last), const(1.5, F32)), load_at("x"))))
        last = f"c{k}"
    return Graph(name="chain", inputs=(buffer("x", ROWS, COLUMNS),), nodes=tuple(nodes), outputs=(Ref(last),))


def wide(count: int) -> Graph:
    nodes = tuple(pointwise(f"w{k}", op("mul", load_at("x"), const(float(k), F32))) for k in range(count))
    outputs = tuple(Ref(f"w{k}") for k in range(count))
    return Graph(name="wide", inputs=(buffer("x", ROWS, COLUMNS),), nodes=nodes, outputs=outputs)


def make_layers(count: int, *, is_across: bool = False) -> Graph:
    nodes: list[Node] = []
    last = "x"
    layer = 0
    while len(nodes) < count:
        p = f"l{layer}_"
        row = (RANGES[0],)
        reduced = load(last, (RANGES[0], AXIS), F32)
        mean, square = buffer(p + "mean", ROWS), buffer(p + "m2", ROWS)
        nodes.append(Reduce(outputs=(mean, square), kind="welford", ranges=row, axes=(AXIS,), body=reduced))
        centred = op("sub", load_at(last), load(mean.name, row, F32))
        nodes.append(pointwise(p + "centred", centred))
        scale = op("rsqrt", op("add", load(square.name, row, F32), const(1e-5, F32)))
        nodes.append(Pointwise(output=buffer(p + "scale", ROWS), ranges=row, body=scale))
        nodes.append(pointwise(p + "norm", op("mul", load_at(p + "centred"), load(p + "scale", row, F32))))
        nodes.append(pointwise(p + "affine", op("mul", load_at(p + "norm"), load("w", (RANGES[1],), F32))))
        product = buffer(p + "product", ROWS, COLUMNS)
        call = Extern(
            target="aten.mm.default",
            args=(Ref(p + "affine"), Ref("m")),
            outputs=(product,),
            out_overload="aten.mm.out",
            out_names=("out",),
        )
        nodes.append(call)
        half = op("mul", load_at(product.name), const(0.5, F32))
        nodes.append(pointwise(p + "half", half))
        nodes.append(pointwise(p + "erf", op("erf", load_at(product.name))))
        nodes.append(
            pointwise(
                p + "gelu", op("mul", load_at(p + "half"), op("add", load_at(p + "erf"), const(1.0, F32)))
            )
        )
        nodes.append(pointwise(p + "out", op("add", load_at(p + "gelu"), load_at(last)), is_across=is_across))
        last = p + "out"
        layer += 1
    inputs = (buffer("x", ROWS, COLUMNS), buffer("w", COLUMNS), buffer("m", COLUMNS, COLUMNS))
    if is_across:
        nodes.append(pointwise("result", op("neg", load_at(last))))
        last = "result"
    return Graph(name="layered", inputs=inputs, nodes=tuple(nodes), outputs=(Ref(last),))


GRAPHS: dict[str, Callable[[int], Graph]] = {
    "chain": chain,
    "wide": wide,
    "layered": make_layers,
    "across": partial(make_layers, is_across=True),
}


def measure(
    sizes: list[int], names: list[str], target_name: str, *, collector: bool
) -> list[dict[str, float | int | str]]:
    """One row per graph and size; `relative_to_n_log_n` compares a row with the smallest size of
    its graph.
    """
    rows: list[dict[str, float | int | str]] = []
    for name in names:
        first: float | None = None
        for size in sizes:
            graph = GRAPHS[name](size)
            targets = declare_capabilities(Targets(main=get_target(target_name)), find_codegen)
            if not collector:
                gc.disable()
            ends = {"": time.process_time()}

            def tell(name: str, after: Graph, ends: dict[str, float] = ends) -> None:
                ends[name] = time.process_time()

            begin = time.process_time()
            made = schedule(graph, targets, observe=tell)
            scheduled = time.process_time()
            passed = list(ends)
            layouts = ends["layouts"] - ends[passed[passed.index("layouts") - 1]]
            plan(made)
            planned = time.process_time()
            gc.enable()
            per = (scheduled - begin) / (len(graph.nodes) * math.log2(len(graph.nodes)))
            first = first or per
            rows.append(
                {
                    "graph": name,
                    "nodes": len(graph.nodes),
                    "schedule_s": round(scheduled - begin, 3),
                    "layouts_s": round(layouts, 3),
                    "plan_s": round(planned - scheduled, 3),
                    "steps": len(made.steps),
                    "distinct_kernels": len(made.kernels),
                    "relative_to_n_log_n": round(per / first, 2),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 5000, 20000, 50000])
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), default=list(GRAPHS))
    parser.add_argument("--collector", action="store_true", help="leave the garbage collector on")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    arguments = parser.parse_args()
    rows = measure(sorted(arguments.sizes), arguments.graphs, arguments.target, collector=arguments.collector)
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    heads = list(rows[0])
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads))
    for row in rows:
        print("| " + " | ".join(str(row[head]) for head in heads) + " |")


if __name__ == "__main__":
    main()
