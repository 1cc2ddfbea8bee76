"""Text of cores, which stands before the body of a kernel. The kernel's ranges go by their names.

    convolve f32 (stride 2 padding 1 dilation 1) groups 2 {
      features (x0, x1, x2) over (r0, r1)
      image [a0: 2, a1: 4, a2: 9]
      weight [b0: 6, b1: 2, b2: 3]
      t0 = load %in0[36*a0 + 9*a1 + a2] : bf16
      t1 = load %in1[6*b0 + 3*b1 + b2] : bf16
      multiply t0, t1
    }

The first line says what is made, the others of what. `attention f32 (x0, x1) over (r0, r1) { ... }` and
`attention_gradient` have the lines that they have in graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.index import Expr
from coilwork_ir.kernels.nodes import AttentionCore, AttentionGradientCore, ConvolutionCore, Core
from coilwork_ir.loops.text import format_domain, format_weights, format_window
from coilwork_ir.text.atoms import format_list
from coilwork_ir.text.scalars import format_scalars


def format_core(core: Core, indent: str) -> list[str]:
    """Lines of text of `core`."""
    inner = indent + "  "
    statements, names = format_scalars(core.bodies, inner)
    if isinstance(core, ConvolutionCore):
        windows = format_list(format_window(window) for window in core.windows)
        head = f"convolve {core.accumulate.text} {windows} groups {core.groups}"
        made = f"{core.makes} {_format_ranges(core.ranges, core.axes)}"
        operands = [f"{role} {format_domain(body.ranges)}" for role, body in core.operands]
        domains = [inner + line for line in (made, *operands)]
        factors = ", ".join(names[value] for value in core.bodies)
        return [f"{indent}{head} {{", *domains, *statements, f"{inner}multiply {factors}", f"{indent}}}"]
    weights = core.weights
    word = "attention" if isinstance(core, AttentionCore) else "attention_gradient"
    head = f"{word} {weights.accumulate.text} {_format_ranges(weights.ranges, weights.axes)}"
    lines = format_weights(weights, names, inner)
    if isinstance(core, AttentionGradientCore):
        saved = [
            f"{what} {names[value]}"
            for what, value in (
                ("output", core.output),
                ("logsumexp", core.logsumexp),
                ("gradient", core.gradient),
            )
        ]
        lines += [f"{inner}{', '.join(saved)}", f"{inner}slope {names[core.slope]}"]
        lines += [] if core.bias is None else [f"{inner}bias {names[core.bias]}"]
    return [f"{indent}{head} {{", *statements, *lines, f"{indent}}}"]


def _format_ranges(ranges: Sequence[Expr], axes: Sequence[Expr]) -> str:
    return f"{format_list(r.name for r in ranges)} over {format_list(a.name for a in axes)}"
