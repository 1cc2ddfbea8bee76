"""The text form of kernels and schedules: `parse_kernel(format_kernel(k)) == k`. `parser.py` reads it.

    kernel @sum_1f2e3d4c fast {
      size n0 in [2, inf]
      range x0: `n0` parallel
      range r0: `1024` reduction
      arg in0: f32 in span `1024*n0` aligned
      arg out0: f32 out span `n0`
      body {
        t0 = load %in0[1024*x0 + r0] : f32
        t1 = reduce sum 0 (t0) over (r0)
        store %out0[x0] = t1
      }
    }

A core stands before the body. Its first line says what is made, the others of what; the kernel's ranges go
by their names. `attention f32 (x0, x1) over (r0, r1) { ... }` and `attention_gradient` have the lines that
they have in graphs.

    convolve f32 (stride 2 padding 1 dilation 1) groups 2 {
      features (x0, x1, x2) over (r0, r1)
      image [a0: 2, a1: 4, a2: 9]
      weight [b0: 6, b1: 2, b2: 3]
      t0 = load %in0[36*a0 + 9*a1 + a2] : bf16
      t1 = load %in1[6*b0 + 3*b1 + b2] : bf16
      multiply t0, t1
    }
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, format_expr
from coilwork_ir.kernels.nodes import (
    AttentionCore,
    AttentionGradientCore,
    ConvolutionCore,
    Core,
    Decision,
    Kernel,
    KernelCall,
    Member,
    Proposal,
    Schedule,
    Store,
)
from coilwork_ir.kernels.parser import parse_kernel, parse_schedule
from coilwork_ir.kernels.rewrite import list_printed_roots
from coilwork_ir.loops.text import (
    format_checks,
    format_domain,
    format_header,
    format_node,
    format_saved,
    format_weights,
    format_window,
)
from coilwork_ir.streams import ForkStream, JoinStream, RecordEvent, WaitEvent
from coilwork_ir.text.atoms import (
    format_buffer,
    format_list,
    format_on,
    format_origins,
    format_output,
    format_stream_instruction,
    format_symbol,
)
from coilwork_ir.text.reader import quote
from coilwork_ir.text.scalars import (
    Names,
    format_scalars,
)

__all__ = ["format_kernel", "format_schedule", "parse_kernel", "parse_schedule"]


# ---- Kernels and schedules ----


def format_kernel(kernel: Kernel, *, origins: bool = True, name: bool = True, indent: str = "") -> str:
    """Canonical text of `kernel`; without `name` and `origins` it is what a cache key should contain."""
    inner = indent + "  "
    lines = [f"{indent}kernel @{kernel.name if name else '_'} {kernel.numerics} {{"]
    lines += [f"{inner}size {format_symbol(s)}" for s in kernel.sizes]
    lines += [f"{inner}range {r.symbol.name}: `{format_expr(r.extent)}` {r.kind}" for r in kernel.ranges]
    for arg in kernel.args:
        aligned = " aligned" if arg.aligned else ""
        lines.append(
            f"{inner}arg {arg.name}: {arg.dtype.text} {arg.role} span `{format_expr(arg.span)}`{aligned}"
        )
    if kernel.aliasing:
        pairs = format_list(f"{output} of {source}" for output, source in kernel.aliasing)
        lines.append(f"{inner}aliasing {pairs}")
    if kernel.workspace:
        lines.append(f"{inner}workspace {kernel.workspace}")
    if kernel.combined is not None:
        lines.append(f"{inner}combined {{")
        lines.append(format_kernel(kernel.combined.body, origins=False, indent=inner + "  "))
        lines += [f"{inner}  {_member(member)}" for member in kernel.combined.members]
    else:
        lines += [] if kernel.core is None else format_core(kernel.core, inner)
        lines.append(f"{inner}body {{")
        lines += _body_lines(kernel, inner + "  ")
    lines += [f"{inner}}}", f"{indent}}}" + (format_origins(kernel.origins) if origins else "")]
    return "\n".join(lines) + ("" if indent else "\n")


def _member(member: Member) -> str:
    text = f"member {format_list(member.args)}"
    return text + (f" sizes [{', '.join(format_expr(s) for s in member.sizes)}]" if member.sizes else "")


def _body_lines(kernel: Kernel, indent: str) -> list[str]:
    lines, names = format_scalars(list_printed_roots(kernel), indent)
    lines += format_checks(kernel.checks, names, indent)
    return lines + [indent + _store(store, names) for store in kernel.stores]


def _store(store: Store, names: Names) -> str:
    text = f"store %{store.buffer}[{format_expr(store.index)}]"
    if store.indirect:
        text += f" using {format_list(names[v] for v in store.indirect)}"
    if store.mode != "store":
        text += f" {store.mode}"
    text += f" = {names[store.value]}"
    return text if store.mask is None else f"{text} mask {names[store.mask]}"


def format_proposals(proposals: Iterable[Proposal], indent: str) -> list[str]:
    """Lines that say how templates want kernels to run."""
    lines: list[str] = []
    for proposal in proposals:
        lines.append(f"{indent}propose @{proposal.kernel} {{")
        lines += [f"{indent}  candidate {quote(c.directives)} {quote(c.reason)}" for c in proposal.candidates]
        lines.append(f"{indent}}}")
    return lines


def format_schedule(schedule: Schedule, *, origins: bool = True, decisions: bool = True) -> str:
    """Canonical text of `schedule`; without `origins` and `decisions` it depends only on what is computed."""
    lines = [f"schedule @{schedule.name} {{"]
    lines += format_header(schedule.symbols, schedule.inputs, schedule.constants, "  ")
    lines += [format_kernel(kernel, origins=origins, indent="  ") for kernel in schedule.kernels]
    lines += format_proposals(schedule.proposals, "  ")
    buffers = {buffer.name: buffer for buffer in schedule.buffers}
    for step in schedule.steps:
        if isinstance(step, KernelCall):
            lines += _call_lines(step, schedule, buffers, origins)
        elif isinstance(step, ForkStream | RecordEvent | WaitEvent | JoinStream):
            lines.append("  " + format_stream_instruction(step, origins=origins))
        else:
            lines.append(format_node(step, "  ", origins=origins))
    lines.append(f"  return {format_list(format_output(o) for o in schedule.outputs)}")
    if decisions:
        lines += [f"  decision {_decision(d)}" for d in schedule.decisions]
    return "\n".join([*lines, "}"]) + "\n"


def _call_lines(call: KernelCall, schedule: Schedule, buffers: dict[str, Buffer], origins: bool) -> list[str]:
    text = f"  call @{call.kernel} {format_list(f'%{a}' for a in call.args)}"
    if call.sizes:
        text += f" sizes [{', '.join(format_expr(s) for s in call.sizes)}]"
    if call.into:
        text += f" into {format_list(f'%{new} of %{old}' for new, old in call.into)}"
    defined = [buffers[n] for n in call_defines(call, schedule)]
    text += f" defines {format_list(format_buffer(b) for b in defined)}"
    text += format_on(call.stream)
    return [text + (format_origins(call.origins) if origins else "")]


def call_defines(call: KernelCall, schedule: Schedule) -> tuple[str, ...]:
    """Names of the buffers that `call` defines, in argument order, then those that take over older memory."""
    kernel = next(k for k in schedule.kernels if k.name == call.kernel)
    old = {source for _, source in call.into}
    written = [a for a, arg in zip(call.args, kernel.args, strict=True) if arg.role != "in" and a not in old]
    return tuple(dict.fromkeys((*written, *(new for new, _ in call.into))))


def _decision(decision: Decision) -> str:
    verdict = "accepted" if decision.accepted else "rejected"
    subjects = format_list(quote(s) for s in decision.subjects)
    numbers = format_list(f"{quote(name)} {float(value)!r}" for name, value in decision.numbers)
    return f"{quote(decision.rule)} {verdict} {subjects} {quote(decision.reason)} {numbers}"


# ---- Cores ----


def format_core(core: Core, indent: str) -> list[str]:
    """Lines of text of `core`."""
    inner = indent + "  "
    statements, names = format_scalars(core.bodies, inner)
    if isinstance(core, ConvolutionCore):
        windows = format_list(format_window(window) for window in core.windows)
        head = f"convolve {core.accumulate.text} {windows} groups {core.groups}"
        result = f"{core.makes} {_format_ranges(core.ranges, core.axes)}"
        operands = [f"{role} {format_domain(body.ranges)}" for role, body in core.operands]
        domains = [inner + line for line in (result, *operands)]
        factors = ", ".join(names[value] for value in core.bodies)
        return [f"{indent}{head} {{", *domains, *statements, f"{inner}multiply {factors}", f"{indent}}}"]
    weights = core.weights
    word = "attention" if isinstance(core, AttentionCore) else "attention_gradient"
    head = f"{word} {weights.accumulate.text} {_format_ranges(weights.ranges, weights.axes)}"
    lines = format_weights(weights, names, inner)
    if isinstance(core, AttentionGradientCore):
        lines += [f"{inner}{format_saved(core, names)}", f"{inner}slope {names[core.slope]}"]
        lines += [] if core.bias is None else [f"{inner}bias {names[core.bias]}"]
    return [f"{indent}{head} {{", *statements, *lines, f"{indent}}}"]


def _format_ranges(ranges: Sequence[Expr], axes: Sequence[Expr]) -> str:
    return f"{format_list(r.name for r in ranges)} over {format_list(a.name for a in axes)}"
