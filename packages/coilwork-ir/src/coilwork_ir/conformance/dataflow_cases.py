"""The kernels of the conformance kit that are written by hand: one per way in which values move through a
kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coilwork_ir.conformance.case import Case


def _kernel(
    name: str,
    ranges: Sequence[str],
    args: Sequence[str],
    body: str,
    *,
    sizes: Sequence[str] = (),
) -> str:
    lines = [f"kernel @{name} fast {{"]
    lines += [f"size {size} in [0, inf]" for size in sizes]
    lines += [f"range {entry}" for entry in ranges]
    lines += [f"arg {entry}" for entry in args]
    return "\n".join([*lines, "body {", body.strip(), "}", "}"])


_ROWS: Final = ("x0: `6` parallel", "r0: `n0` reduction")
_ROWS_IN: Final = "in0: f32 in span `6*n0`"
_ROW_SIZES: Final = ({"n0": 8}, {"n0": 33}, {"n0": 1000})
_LINE_SIZES: Final = ({"n0": 0}, {"n0": 1}, {"n0": 37}, {"n0": 1024})

WRITTEN_CASES: Final[tuple[Case, ...]] = (
    Case(
        name="broadcast",
        text=_kernel(
            "broadcast",
            ("x0: `n0` parallel", "x1: `5` parallel"),
            ("in0: f32 in span `5*n0`", "in1: f32 in span `5`", "out0: f32 out span `5*n0`"),
            """
            t0 = load %in0[5*x0 + x1] : f32
            t1 = load %in1[x1] : f32
            t2 = add(t0, t1)
            t3 = const 0.5 : f32
            t4 = mul(t2, t3)
            t5 = tanh(t4)
            store %out0[5*x0 + x1] = t5
            """,
            sizes=("n0",),
        ),
        sizes=_LINE_SIZES,
    ),
    Case(
        name="transpose",
        text=_kernel(
            "transpose",
            ("y0: `n0` parallel", "x0: `19` parallel"),
            ("in0: f32 in span `19*n0`", "out0: f32 out span `19*n0`"),
            """
            t0 = load %in0[n0*x0 + y0] : f32
            t1 = neg(t0)
            store %out0[19*y0 + x0] = t1
            """,
            sizes=("n0",),
        ),
        sizes=({"n0": 1}, {"n0": 40}),
    ),
    Case(
        name="row-sum",
        text=_kernel(
            "row_sum",
            _ROWS,
            (_ROWS_IN, "out0: f32 out span `6`"),
            """
            t0 = load %in0[n0*x0 + r0] : f32
            t1 = reduce sum 0 (t0) over (r0)
            store %out0[x0] = t1
            """,
            sizes=("n0",),
        ),
        sizes=({"n0": 0}, *_ROW_SIZES),
    ),
    Case(
        name="column-max",
        text=_kernel(
            "column_max",
            _ROWS,
            (_ROWS_IN, "out0: f32 out span `6`"),
            """
            t0 = load %in0[x0 + 6*r0] : f32
            t1 = reduce max 0 (t0) over (r0)
            store %out0[x0] = t1
            """,
            sizes=("n0",),
        ),
        sizes=_ROW_SIZES,
        fills=(("in0", "special"),),
    ),
    Case(
        name="softmax",
        text=_kernel(
            "softmax",
            _ROWS,
            (_ROWS_IN, "out0: f32 out span `6*n0`"),
            """
            t0 = load %in0[n0*x0 + r0] : f32
            t1 = reduce max 0 (t0) over (r0)
            t2 = sub(t0, t1)
            t3 = exp(t2)
            t4 = reduce sum 0 (t3) over (r0)
            t5 = div(t3, t4)
            store %out0[n0*x0 + r0] = t5
            """,
            sizes=("n0",),
        ),
        sizes=_ROW_SIZES,
    ),
    Case(
        name="softmax-online",
        text=_kernel(
            "softmax_online",
            _ROWS,
            (_ROWS_IN, "out0: f32 out span `6*n0`"),
            """
            t0 = load %in0[n0*x0 + r0] : f32
            t1 = reduce online_softmax 0 (t0) over (r0)
            t2 = reduce online_softmax 1 (t0) over (r0)
            t3 = sub(t0, t1)
            t4 = exp(t3)
            t5 = div(t4, t2)
            store %out0[n0*x0 + r0] = t5
            """,
            sizes=("n0",),
        ),
        sizes=_ROW_SIZES,
    ),
    Case(
        name="layer-norm",
        text=_kernel(
            "layer_norm",
            _ROWS,
            (_ROWS_IN, "in1: f32 in span `n0`", "out0: f32 out span `6*n0`", "out1: f32 out span `6`"),
            """
            t0 = load %in0[n0*x0 + r0] : f32
            t1 = reduce welford 0 (t0) over (r0)
            t2 = reduce welford 1 (t0) over (r0)
            t3 = index [n0]
            t4 = cast(t3) : f32
            t5 = div(t2, t4)
            t6 = const 1e-05 : f32
            t7 = add(t5, t6)
            t8 = rsqrt(t7)
            t9 = sub(t0, t1)
            t10 = mul(t9, t8)
            t11 = load %in1[r0] : f32
            t12 = mul(t10, t11)
            store %out0[n0*x0 + r0] = t12
            store %out1[x0] = t8
            """,
            sizes=("n0",),
        ),
        sizes=_ROW_SIZES,
    ),
    Case(
        name="argmax",
        text=_kernel(
            "argmax",
            _ROWS,
            (_ROWS_IN, "out0: i64 out span `6`"),
            """
            t0 = load %in0[n0*x0 + r0] : f32
            t1 = const 2.0 : f32
            t2 = mul(t0, t1)
            t3 = round(t2)
            t4 = reduce argmax 0 (t3) over (r0)
            store %out0[x0] = t4
            """,
            sizes=("n0",),
        ),
        sizes=_ROW_SIZES,
    ),
    Case(
        name="any",
        text=_kernel(
            "any",
            _ROWS,
            (_ROWS_IN, "out0: bool out span `6`"),
            """
            t0 = load %in0[n0*x0 + r0] : f32
            t1 = const 3.0 : f32
            t2 = gt(t0, t1)
            t3 = reduce any 0 (t2) over (r0)
            store %out0[x0] = t3
            """,
            sizes=("n0",),
        ),
        sizes=({"n0": 0}, *_ROW_SIZES),
    ),
    Case(
        name="masked-load",
        text=_kernel(
            "masked_load",
            ("x0: `n0` parallel",),
            ("in0: f32 in span `n0`", "out0: f32 out span `n0`"),
            """
            t0 = index [x0]
            t1 = const 2 : i64
            t2 = ge(t0, t1)
            t3 = load %in0[x0 - 2] : f32 mask t2 other -1.0
            store %out0[x0] = t3
            """,
            sizes=("n0",),
        ),
        sizes=_LINE_SIZES,
    ),
    Case(
        name="gather",
        text=_kernel(
            "gather",
            ("x0: `n0` parallel", "x1: `3` parallel"),
            ("in0: i64 in span `n0`", "in1: f32 in span `21`", "out0: f32 out span `3*n0`"),
            """
            t0 = load %in0[x0] : i64
            t1 = const 0 : i64
            t2 = le(t1, t0)
            t3 = const 7 : i64
            t4 = lt(t0, t3)
            t5 = bitwise_and(t2, t4)
            t6 = load %in1[3*@0 + x1] using (t0) : f32 mask t5 other 0.0
            check t5 IndexError "index out of range"
            store %out0[3*x0 + x1] = t6
            """,
            sizes=("n0",),
        ),
        sizes=_LINE_SIZES,
        fills=(("in0", "index"),),
        limit=7,
    ),
    Case(
        name="scan",
        text=_kernel(
            "scan",
            _ROWS,
            (_ROWS_IN, "out0: f32 out span `6*n0`"),
            """
            t0 = load %in0[n0*x0 + r0] : f32
            t1 = scan sum 0 (t0) along r0
            store %out0[n0*x0 + r0] = t1
            """,
            sizes=("n0",),
        ),
        sizes=_ROW_SIZES,
    ),
    Case(
        name="scatter-add",
        text=_kernel(
            "scatter_add",
            ("x0: `n0` parallel",),
            ("in0: i64 in span `n0`", "in1: f32 in span `n0`", "io0: f32 inout span `7`"),
            """
            t0 = load %in0[x0] : i64
            t1 = load %in1[x0] : f32
            store %io0[@0] using (t0) add = t1
            """,
            sizes=("n0",),
        ),
        sizes=_LINE_SIZES,
        fills=(("in0", "index"),),
        limit=7,
    ),
    Case(
        name="int64",
        text=_kernel(
            "int64",
            ("x0: `n0` parallel",),
            ("in0: i64 in span `n0`", "out0: i64 out span `n0`", "out1: i64 out span `n0`"),
            """
            t0 = load %in0[x0] : i64
            t1 = const 1000003 : i64
            t2 = mul(t0, t1)
            t3 = const -7 : i64
            t4 = floordiv(t2, t3)
            t5 = mod(t2, t3)
            store %out0[x0] = t4
            store %out1[x0] = t5
            """,
            sizes=("n0",),
        ),
        sizes=_LINE_SIZES,
        fills=(("in0", "range"),),
    ),
    Case(
        name="bf16",
        text=_kernel(
            "bf16",
            ("x0: `n0` parallel",),
            ("in0: bf16 in span `n0`", "out0: bf16 out span `n0`"),
            """
            t0 = load %in0[x0] : bf16
            t1 = cast(t0) : f32
            t2 = sigmoid(t1)
            t3 = mul(t1, t2)
            t4 = cast(t3) : bf16
            store %out0[x0] = t4
            """,
            sizes=("n0",),
        ),
        sizes=_LINE_SIZES,
    ),
    Case(
        name="update-in-place",
        text=_kernel(
            "update_in_place",
            ("x0: `n0` parallel",),
            ("in0: f32 in span `n0`", "io0: f32 inout span `n0`"),
            """
            t0 = load %io0[x0] : f32
            t1 = load %in0[x0] : f32
            t2 = add(t0, t1)
            store %io0[x0] = t2
            """,
            sizes=("n0",),
        ),
        sizes=_LINE_SIZES,
    ),
    Case(
        name="special-values",
        text=_kernel(
            "special_values",
            ("x0: `n0` parallel",),
            (
                "in0: f32 in span `n0`",
                "in1: f32 in span `n0`",
                "out0: f32 out span `n0`",
                "out1: bool out span `n0`",
            ),
            """
            t0 = load %in0[x0] : f32
            t1 = load %in1[x0] : f32
            t2 = maximum(t0, t1)
            t3 = minimum(t2, t0)
            t4 = ne(t0, t0)
            t5 = isinf(t1)
            t6 = bitwise_or(t4, t5)
            store %out0[x0] = t3
            store %out1[x0] = t6
            """,
            sizes=("n0",),
        ),
        sizes=_LINE_SIZES,
        fills=(("in0", "special"), ("in1", "special")),
    ),
    Case(
        name="flat-index",
        text=_kernel(
            "flat_index",
            ("x0: `6*n0` parallel",),
            ("in0: f32 in span `6*n0`", "out0: f32 out span `6*n0`"),
            """
            t0 = load %in0[n0*(x0 % 6) + x0//6] : f32
            store %out0[x0] = t0
            """,
            sizes=("n0",),
        ),
        sizes=({"n0": 1}, {"n0": 5}, {"n0": 64}),
    ),
    # rows that a program takes one after the other, and sums of their columns; a CPU's schedule has none, so
    # it may refuse
    Case(
        name="rows-and-columns",
        text=_kernel(
            "rows_and_columns",
            ("x0: `4` parallel", "w0: `(n0 + 3)//4` sequential", "r0: `37` reduction"),
            (
                "in0: f32 in span `37*n0`",
                "in1: f32 in span `37`",
                "out0: f32 out span `37*n0`",
                "out1: f32 out span `148`",
                "out2: f32 out span `4`",
            ),
            """
            t0 = index [((n0 + 3)//4)*x0 + w0]
            t1 = index [n0]
            t2 = lt(t0, t1)
            t3 = load %in0[37*((n0 + 3)//4)*x0 + 37*w0 + r0] : f32 mask t2 other 0.0
            t4 = load %in1[r0] : f32
            t5 = mul(t3, t4)
            t6 = reduce sum 0 (t5) over (r0)
            t7 = sub(t3, t6)
            t8 = const 0.0 : f32
            t9 = where(t2, t7, t8)
            t10 = reduce sum 0 (t9) over (w0)
            t11 = where(t2, t6, t8)
            t12 = reduce max 0 (t11) over (w0)
            store %out0[37*((n0 + 3)//4)*x0 + 37*w0 + r0] = t7 mask t2
            store %out1[37*x0 + r0] = t10
            store %out2[x0] = t12
            """,
            sizes=("n0",),
        ),
        sizes=({"n0": 1}, {"n0": 3}, {"n0": 16}, {"n0": 23}),
    ),
    Case(
        name="failing-check",
        text=_kernel(
            "failing_check",
            ("x0: `n0` parallel",),
            ("in0: i64 in span `n0`", "out0: i64 out span `n0`"),
            """
            t0 = load %in0[x0] : i64
            t1 = const 7 : i64
            t2 = lt(t0, t1)
            check t2 RuntimeError "value out of range"
            store %out0[x0] = t0
            """,
            sizes=("n0",),
        ),
        sizes=({"n0": 37},),
        fills=(("in0", "bad-index"),),
        limit=7,
    ),
)
