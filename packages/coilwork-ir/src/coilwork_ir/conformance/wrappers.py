"""The conformance kit for wrappers: programs that show every instruction at work, and how they are compared.

`check_wrapper` runs what a wrapper makes of each program and compares it with the programs' interpreter.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias, get_args

import torch
from torch import Tensor

from coilwork_ir.backend import Codegen
from coilwork_ir.conformance.check import TOLERANCES, Result
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import CoilworkIRError, EmitError, InterpretError
from coilwork_ir.interpretation.memory import view_as_line
from coilwork_ir.kernel_source import KernelSource, SourceArg
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.text import format_kernel, parse_kernel
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.program.nodes import ExternCall, Instruction, Program
from coilwork_ir.program.text import parse_program
from coilwork_ir.program.verify import verify_program
from coilwork_ir.program.walk import index_buffers, list_kernels, walk
from coilwork_ir.target import Target
from coilwork_ir.wrapper import Artifact, Launcher, WrapOptions, Wrapper

# ---- Programs ----


Inputs: TypeAlias = Sequence[Tensor | int]

RELU_ADD: Final = """kernel @relu_add fast {
  size n0 in [0, inf]
  range x0: `n0` parallel
  arg in0: f32 in span `n0`
  arg in1: f32 in span `n0`
  arg out0: f32 out span `n0`
  body {
    t0 = load %in0[x0] : f32
    t1 = const 0.0 : f32
    t2 = maximum(t0, t1)
    t3 = load %in1[x0] : f32
    t4 = add(t2, t3)
    store %out0[x0] = t4
  }
}"""
DOUBLE: Final = """kernel @twice fast {
  size n0 in [0, inf]
  range x0: `n0` parallel
  arg io0: f32 inout span `n0`
  body {
    t0 = load %io0[x0] : f32
    t1 = add(t0, t0)
    store %io0[x0] = t1
  }
}"""
ROOT: Final = """kernel @root fast {
  size n0 in [0, inf]
  range x0: `n0` parallel
  arg in0: f32 in span `n0`
  arg out0: f32 out span `n0`
  body {
    t0 = load %in0[x0] : f32
    t1 = const 0.0 : f32
    t2 = ge(t0, t1)
    t3 = sqrt(t0)
    check t2 RuntimeError "a root of a negative number"
    store %out0[x0] = t3
  }
}"""


def _row(count: int, *shape: int) -> Tensor:
    """Floats that differ, on both sides of 0 but for very few."""
    return (torch.arange(count, dtype=torch.float32) * 0.75 - 2).reshape(shape or (count,))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperCase:
    """A program and calls of it.

    Attributes:
        name: unique in the kit.
        text: the program; `RELU_ADD`, `DOUBLE` and `ROOT` stand for kernels.
        calls: makers of inputs. A call may be one that the program refuses.
        constants: makers of tensors by key.
    """

    name: str
    text: str
    calls: tuple[Callable[[], Inputs], ...]
    constants: Mapping[str, Callable[[], Tensor]] = field(default_factory=lambda: MappingProxyType({}))

    def program(self) -> Program:
        """Return the program, read from its text."""
        text = self.text
        for word, kernel in (("RELU_ADD", RELU_ADD), ("DOUBLE", DOUBLE), ("ROOT", ROOT)):
            text = text.replace(word, kernel)
        return parse_program(text)


def list_uncovered(cases: Sequence[WrapperCase]) -> tuple[str, ...]:
    """Instructions that no program of `cases` holds."""
    shown = {type(step) for case in cases for part in walk(case.program()) for step in part.instructions}
    return tuple(kind.__name__ for kind in get_args(Instruction) if kind not in shown)


WRAPPER_CASES: Final = (
    WrapperCase(
        name="launches, layouts and reuse",
        text="""program @reused {
          symbol s0 in [1, inf]
          input %x: f32[s0, 4]
          input %y: f32[s0, 4]
          RELU_ADD
          DOUBLE
          bind s0 in [1, inf] size %x 0
          check %x aligned
          check %y
          alloc %a: f32[s0, 4]
          launch @relu_add (%x, %y, %a) sizes [4*s0]
          view %half: f32[s0, 2]{4, 1} of %a offset `2`
          extern "aten.neg.default" (%half) defines (%n: f32[s0, 2])
          free (%half)
          reuse %b: f32[4*s0] of %a
          launch @twice (%b) sizes [4*s0]
          comment "as bits"
          view %bits: i32[2*s0] of %b offset `2*s0`
          return (%b, %n, %bits, `4*s0 + 1`, none)
        }""",
        calls=(
            lambda: (_row(12, 3, 4), _row(12, 3, 4)),
            lambda: (_row(28, 7, 4), _row(28, 7, 4)),
            # an input that starts at no multiple of 16 bytes, and one that the program is not for
            lambda: (_row(13)[1:].reshape(3, 4), _row(12, 3, 4)),
            lambda: (_row(12, 3, 4), _row(12, 4, 3).t()),
        ),
    ),
    WrapperCase(
        name="pools",
        text="""program @pooled {
          symbol s0 in [1, inf]
          input %x: f32[s0]
          input %i: i64[s0]
          DOUBLE
          bind s0 in [1, inf] size %x 0
          pool %pool `64*s0 + 64` "cpu"
          carve %a: f32[s0] of %pool at `64`
          carve %b: i64[s0] of %pool at `0`
          extern "aten.neg.out" (%x) out ("out" %a)
          extern "aten.bitwise_not.out" (%i) out ("out" %b)
          launch @twice (%a) sizes [s0]
          extern "aten.maximum.default" (%a, %b) defines (%c: f32[s0])
          free (%a, %b, %pool)
          return (%c)
        }""",
        calls=(lambda: (_row(5), torch.arange(5)), lambda: (_row(9), torch.arange(9))),
    ),
    WrapperCase(
        name="inputs that are written and returned",
        text="""program @written {
          input %x: f32[4, 3]
          DOUBLE
          launch @twice (%x) sizes [12]
          view %t: f32[3, 4]{1, 3} of %x offset `0`
          return (%x, %t, %x)
        }""",
        calls=(lambda: (_row(12, 4, 3),),),
    ),
    WrapperCase(
        name="operators with several results and every kind of argument",
        text="""program @operators {
          input %x: f32[2, 6]
          extern "aten.max.dim" (%x, 1) defines (%m: f32[2], %k: i64[2]) tuple
          extern "aten.topk.default" (%x, 2, dim = -1) defines (_, %top: i64[2, 2]) tuple
          extern "aten.nonzero.default" (%x) binds (u0 in [0, inf] of 0 0) defines (%where: i64[u0, 2]{1, u0})
          extern "aten.sum.dim_IntList" (%where, [0]) defines (%sum: i64[2])
          extern "aten.full.default" ([2, `u0`], inf, dtype = type f64) defines (%f: f64[2, u0])
          extern "aten.div.Tensor_mode" (%x, %x, rounding_mode = "floor") defines (%d: f32[2, 6])
          return (%m, %k, %top, %sum, %f, %d, `u0 + 1`)
        }""",
        calls=(lambda: ((_row(12, 2, 6) > 0).float(),), lambda: (_row(12, 2, 6),)),
    ),
    WrapperCase(
        name="results with declared strides, at declared addresses",
        text="""program @strided {
          input %x: f32[2, 8]
          extern "aten.neg.default" (%x) defines (%n: f32[2, 8]{1, 2})
          extern "aten.slice.Tensor" (%x, 1, 4) defines (%far: f32[2, 4]{8, 1}) aligned (0)
          extern "aten.slice.Tensor" (%x, 1, 5) defines (%free: f32[2, 3]{8, 1})
          return (%n, %far, %free)
        }""",
        calls=(lambda: (_row(16, 2, 8),),),
    ),
    WrapperCase(
        name="an operator's result of another shape is refused",
        text="""program @misdeclared {
          input %x: f32[2, 3]
          extern "aten.neg.default" (%x) defines (%y: f32[3, 2])
          return (%y)
        }""",
        calls=(lambda: (_row(6, 2, 3),),),
    ),
    WrapperCase(
        name="numbers that data decides",
        text="""program @numbers {
          input %n: i64[]
          extern "aten.item.default" (%n) defines (size u0 in [0, inf])
          extern "aten.arange.default" (`2*u0`) defines (%r: i64[2*u0])
          extern "aten.clamp.default" (%r, none, 3) defines (%c: i64[2*u0])
          return (%c, `u0`)
        }""",
        calls=(lambda: (torch.tensor(3),), lambda: (torch.tensor(0),)),
    ),
    WrapperCase(
        name="sizes, and a check of them",
        text="""program @sized {
          symbol s0 in [0, inf]
          symbol s1 in [0, inf]
          input size `s1`
          input %x: f32[s0]{s1}
          input size `s1`
          bind s0 in [0, inf] size %x 0
          assert `2*s0` le `8` "there are too many"
          extern "aten.neg.default" (%x) defines (%y: f32[s0])
          return (%y, `s1`, `s0 // 2`, `(s0 + 7) // 3 + s1 % 2 - max(s0, 2)*min(s0, 3)`)
        }""",
        calls=(
            lambda: (1, _row(3), 1),
            lambda: (2, _row(8)[::2], 2),
            lambda: (1, _row(0), 1),
            lambda: (1, _row(5), 1),
        ),
    ),
    WrapperCase(
        name="strides of an input",
        text="""program @strides {
          symbol s0 in [1, inf]
          input %x: f32[2, 3]{s0, 1}
          bind s0 in [1, inf] stride %x 0
          check %x
          extern "aten.neg.default" (%x) defines (%y: f32[2, 3])
          return (%y, `s0 - 3`)
        }""",
        calls=(lambda: (_row(6, 2, 3),), lambda: (_row(10, 2, 5)[:, :3],)),
    ),
    WrapperCase(
        name="constants, of nested programs too",
        text="""program @constants {
          input %flag: bool[]
          constant "a" %w: f32[2]
          cond %flag () defines (%y: f32[2]) {
            program @then {
              constant "b" %w: f32[2]
              constant "a" %other: f32[2]
              extern "aten.maximum.default" (%w, %other) defines (%d: f32[2])
              return (%d)
            }
            program @otherwise {
              constant "b" %v: f32[2]
              extern "aten.neg.default" (%v) defines (%w: f32[2])
              return (%w)
            }
          }
          extern "aten.minimum.default" (%y, %w) defines (%z: f32[2])
          free (%w)
          return (%z)
        }""",
        calls=(lambda: (torch.tensor(True),), lambda: (torch.tensor(False),)),
        constants=MappingProxyType({"a": lambda: _row(2), "b": lambda: _row(2) * 3}),
    ),
    WrapperCase(
        name="a condition with sizes of its surroundings",
        text="""program @chosen {
          symbol s0 in [1, inf]
          input %flag: bool[]
          input %x: f32[s0, 4]
          DOUBLE
          bind s0 in [1, inf] size %x 0
          cond %flag (%x, `2*s0`) defines (%y: f32[s0, 4]) {
            program @then {
              symbol n in [0, inf]
              input %a: f32[s0, 4]
              input size `n`
              DOUBLE
              assert `n` eq `2*s0` "the surroundings have other sizes"
              extern "aten.neg.default" (%a) defines (%r: f32[s0, 4])
              launch @twice (%r) sizes [4*s0]
              return (%r)
            }
            program @otherwise {
              symbol n in [0, inf]
              input %a: f32[s0, 4]
              input size `n`
              return (%a)
            }
          }
          extern "aten.neg.default" (%y) defines (%z: f32[s0, 4])
          return (%z, %y)
        }""",
        calls=(
            lambda: (torch.tensor(True), _row(4, 1, 4)),
            lambda: (torch.tensor(False), _row(4, 1, 4)),
            lambda: (torch.tensor(True), _row(12, 3, 4)),
            lambda: (torch.tensor(False), _row(12, 3, 4)),
        ),
    ),
    WrapperCase(
        name="a loop",
        text="""program @looped {
          input %n: bool[3]
          input %x: f32[3]
          while (%n, %x) (%x) defines (%m: bool[3], %y: f32[3]) {
            program @condition {
              input %k: bool[3]
              input %a: f32[3]
              input %least: f32[3]
              extern "aten.any.default" (%k) defines (%go: bool[])
              return (%go)
            }
            program @body {
              input %k: bool[3]
              input %a: f32[3]
              input %least: f32[3]
              extern "aten.roll.default" (%k, [1]) defines (%moved: bool[3])
              extern "aten.logical_and.default" (%k, %moved) defines (%less: bool[3])
              extern "aten.exp.default" (%a) defines (%more: f32[3])
              extern "aten.maximum.default" (%more, %least) defines (%most: f32[3])
              return (%less, %most)
            }
          }
          return (%y, %m)
        }""",
        calls=(
            lambda: (torch.tensor([True, True, False]), _row(3)),
            lambda: (torch.tensor([False, False, False]), _row(3)),
        ),
    ),
    WrapperCase(
        name="a loop of so many rounds",
        text="""program @counted {
          symbol s0 in [0, inf]
          input %x: f32[s0, 3]
          input %first: f32[3]
          bind s0 in [0, inf] size %x 0
          alloc %stack: f32[s0, 3]
          repeat `s0` (%first) (%x, %stack) defines (%last: f32[3]) {
            program @body {
              symbol number in [0, inf]
              input %c: f32[3]
              input %rows: f32[s0, 3]
              input %kept: f32[s0, 3]
              input size `number`
              view %row: f32[3] of %rows offset `3*number`
              view %place: f32[3] of %kept offset `3*(s0 - number - 1)`
              extern "aten.add.Tensor" (%c, %row) defines (%sum: f32[3])
              extern "aten.sin.out" (%sum) out ("out" %place)
              return (%sum)
            }
          }
          return (%last, %stack)
        }""",
        calls=(
            lambda: (_row(15, 5, 3), _row(3)),
            lambda: (_row(3, 1, 3), _row(3)),
            lambda: (torch.empty(0, 3), _row(3)),
        ),
    ),
    WrapperCase(
        name="a kernel that checks what it reads",
        text="""program @checked {
          symbol s0 in [0, inf]
          input %x: f32[s0]
          ROOT
          bind s0 in [0, inf] size %x 0
          check %x
          alloc %y: f32[s0]
          launch @root (%x, %y) sizes [s0]
          return (%y)
        }""",
        calls=(lambda: (_row(7).abs(),), lambda: (_row(7),), lambda: (_row(0),)),
    ),
    WrapperCase(
        name="memory in flight",
        text="""program @flying {
          input %x: f32[4]
          extern "aten.neg.default" (%x) defines (%a: f32[4])
          extern "aten.exp.default" (%a) defines (%b: f32[4]) in_flight (%a, %b) until (%b)
          extern "aten.sin.default" (%b) defines (%c: f32[4]) waits (%b)
          free (%a)
          return (%c)
        }""",
        calls=(lambda: (_row(4),),),
    ),
    WrapperCase(
        name="streams, events and copies",
        text="""program @beside {
          input %x: f32[4]
          input %w: f32[2, 2]
          DOUBLE
          alloc %a: f32[4]
          alloc %b: f32[2, 2]
          alloc %h: f32[4]
          fork %s "cpu"
          fork %t "cpu" after %s
          extern "aten.neg.out" (%x) out ("out" %a) on %s
          launch @twice (%a) sizes [4] on %s
          copy %a to %h nonblocking on %s
          record %copied "cpu" on %s
          extern "aten.mm.out" (%w, %w) out ("out" %b) on %t
          join %t into %s
          await %copied on host
          record %done "cpu"
          await %done
          join %s
          extern "aten.maximum.default" (%h, %x) defines (%m: f32[4])
          alloc %last: f32[4]
          copy %m to %last
          free (%h, %m)
          return (%a, %b, %last)
        }""",
        calls=(lambda: (_row(4), _row(4, 2, 2)),),
    ),
    WrapperCase(
        name="regions",
        text="""program @regions {
          symbol s0 in [1, inf]
          input %x: f32[s0]
          RELU_ADD
          bind s0 in [1, inf] size %x 0
          alloc %y: f32[s0]
          region nested (%x, %y) sizes (s0 in [1, inf]) leaves (%n) why "as an example" {
            launch @relu_add (%x, %x, %y) sizes [s0]
            extern "aten.neg.default" (%y) defines (%n: f32[s0])
          }
          free (%y)
          return (%n)
        }""",
        calls=(lambda: (_row(5),), lambda: (_row(2),)),
    ),
    WrapperCase(
        name="subprograms",
        text="""program @subprograms {
          symbol s0 in [1, inf]
          input %x: f32[s0, 4]
          RELU_ADD
          program @shift {
            symbol s1 in [1, inf]
            input %v: f32[s1, 4]
            input size `s1`
            RELU_ADD
            alloc %w: f32[s1, 4]
            launch @relu_add (%v, %v, %w) sizes [4 * s1]
            return (%w)
          }
          program @twice_shifted {
            symbol s1 in [1, inf]
            input %v: f32[s1, 4]
            input size `s1`
            extern "aten.neg_.default" (%v) defines (_)
            run @shift (%v, `s1`) defines (%a: f32[s1, 4])
            run @shift (%a, `s1`) defines (%b: f32[s1, 4])
            free (%a)
            return (%b)
          }
          bind s0 in [1, inf] size %x 0
          alloc %y: f32[s0, 4]
          launch @relu_add (%x, %x, %y) sizes [4 * s0]
          run @shift (%y, `s0`) defines (%p: f32[s0, 4])
          run @twice_shifted (%y, `s0`) defines (%q: f32[s0, 4])
          region partition @mine (%p, %q) sizes (s0 in [1, inf]) leaves (%r) why "as an example" {
            alloc %r: f32[s0, 4]
            launch @relu_add (%p, %q, %r) sizes [4 * s0]
          }
          free (%p, %q)
          return (%r, %y)
        }""",
        calls=(lambda: (_row(20, 5, 4),), lambda: (_row(8, 2, 4),)),
    ),
)


# ---- Check ----


Build: TypeAlias = Callable[[Mapping[str, KernelSource]], Mapping[str, Launcher]]
"""Builds kernels, by name."""

# What a call ends with that the program refuses.
_REFUSALS: Final = (CoilworkIRError, RuntimeError, LookupError, ArithmeticError, TypeError, ValueError)


def interpret_sources(sources: Mapping[str, KernelSource]) -> Mapping[str, Launcher]:
    """Launchers of kernels whose texts are kernel IR, which the reference interpreter runs."""
    return {name: _make_interpreter(source.text) for name, source in sources.items()}


def check_wrapper(
    wrapper: Wrapper,
    *,
    codegen: Codegen | None = None,
    target: Target | None = None,
    build: Build = interpret_sources,
    cases: Iterable[WrapperCase] = WRAPPER_CASES,
) -> list[Result]:
    """Emit, call and save every case.

    Also required: results have the interpreter's strides and share memory as its do, inputs are written
    alike, the list of inputs is emptied, and a second call does the same; what the interpreter refuses is
    refused. A refusal names something of the program: an operator, a buffer (`%x`), a kernel, an instruction
    (`LoopCall`), or a size. Errors of calls are of the built-in kinds, or `CoilworkIRError`.

    Without `codegen`, kernels' texts are kernel IR, and launchers interpret it. A wrapper that builds
    sources itself is given one, with its `target`; where launchers come from then is `build`'s affair.
    """
    return [_check_case(wrapper, case, codegen, target, build) for case in cases]


def _check_case(
    wrapper: Wrapper, case: WrapperCase, codegen: Codegen | None, target: Target | None, build: Build
) -> Result:
    program = case.program()
    verify_program(program)
    refused = wrapper.refuses(program)
    if refused:
        unnamed = not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", refused) for word in _words(program))
        reason = f"it does not say what it refuses: {refused!r}" if unnamed else refused
        return Result(case=case.name, sizes=(), status="failed" if unnamed else "refused", reason=reason)
    sources = {kernel.name: _source(kernel, codegen, target) for kernel in list_kernels(program)}
    constants = {key: make() for key, make in case.constants.items()}
    options = WrapOptions(
        target="" if target is None else target.name,
        constants=constants,
        build=lambda: build(sources),
        workers=1,
    )
    try:
        artifact = wrapper.emit(program, sources, options)
    except EmitError as error:
        return Result(case=case.name, sizes=(), status="failed", reason=f"refused late: {error}")
    faults = [_call_fault(artifact, program, make, constants) for make in case.calls for _ in range(2)]
    faults.append(_save_fault(artifact))
    found = next((fault for fault in faults if fault), "")
    return Result(case=case.name, sizes=(), status="failed" if found else "passed", reason=found)


def _words(program: Program) -> set[str]:
    """Return the names that a refusal may contain."""
    words: set[str] = {symbol.name for symbol in program.symbols}
    for part in walk(program):
        words |= {f"@{part.name}", *(f"%{name}" for name in index_buffers(part))}
        for step in part.instructions:
            words |= {type(step).__name__, *((step.target,) if isinstance(step, ExternCall) else ())}
    return words | {kernel.name for kernel in list_kernels(program)}


def _source(kernel: Kernel, codegen: Codegen | None, target: Target | None) -> KernelSource:
    if codegen is not None:
        if target is None:
            raise ValueError("a code generator needs a target")
        return codegen.emit(kernel, target, {})
    sizes = tuple(SourceArg(name=size.name, role="size", dtype=DType.I64) for size in kernel.sizes)
    args = tuple(SourceArg(name=a.name, role=a.role, dtype=a.dtype) for a in kernel.args)
    text = format_kernel(kernel)
    return KernelSource(name=kernel.name, language="cpp", text=text, entry=kernel.name, args=(*args, *sizes))


def _make_interpreter(text: str) -> Launcher:
    kernel = parse_kernel(text)

    def launch(*values: Any) -> None:
        count = len(kernel.args)
        lines = [view_as_line(value) for value in values[:count]]
        sizes = {size.name: int(value) for size, value in zip(kernel.sizes, values[count:], strict=True)}
        interpret_kernel(kernel, dict(zip((a.name for a in kernel.args), lines, strict=True)), sizes)

    return launch


def _call_fault(
    artifact: Artifact, program: Program, make: Callable[[], Inputs], constants: Mapping[str, Tensor]
) -> str:
    mine, theirs = _copy_inputs(make()), _copy_inputs(make())
    kept = {key: value.clone() for key, value in constants.items()}
    wanted, expected = _outcome(lambda: interpret_program(program, theirs, kept))
    boxed = list(mine)
    error, results = _outcome(lambda: artifact(boxed))
    if wanted is not None or error is not None:
        # in which words an input is refused is the wrapper's affair
        is_same = error is not None and isinstance(error, _kind(wanted))
        return "" if is_same else f"ended with {error!r}, should end with {wanted!r}"
    if boxed:
        return "the list of inputs was not emptied"
    return _difference((*results, *mine), (*expected, *theirs), len(expected))


def _kind(wanted: Exception | None) -> tuple[type[Exception], ...]:
    """Return the exceptions that may be raised where the interpreter raises `wanted`."""
    if wanted is None:
        return ()
    return _REFUSALS if isinstance(wanted, InterpretError) else (type(wanted),)


def _outcome(run: Callable[[], Sequence[Any]]) -> tuple[Exception | None, Sequence[Any]]:
    try:
        return None, run()
    except _REFUSALS as error:
        return error, ()


def _difference(results_found: Sequence[Any], wanted: Sequence[Any], results: int) -> str:
    if len(results_found) != len(wanted):
        return f"{len(results_found) - len(wanted) + results} results, should be {results}"
    for position, (result, other) in enumerate(zip(results_found, wanted, strict=True)):
        what = f"result {position}" if position < results else f"input {position - results}, afterwards,"
        if not isinstance(other, Tensor):
            if result != other or isinstance(result, Tensor):
                return f"{what} is {result!r}, should be {other!r}"
            continue
        if not isinstance(result, Tensor) or (result.dtype, result.shape) != (other.dtype, other.shape):
            return f"{what} is {_describe_value(result)}, should be {_describe_value(other)}"
        if _meaningful_strides(result) != _meaningful_strides(other):
            return f"{what} has strides {result.stride()}, should have {other.stride()}"
        tolerance = TOLERANCES.get(other.dtype, 0.0)
        if not torch.allclose(result, other, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"{what} is {result!r}, should be {other!r}"
    if _find_shared_memory(results_found) != _find_shared_memory(wanted):
        return "results share memory otherwise with each other, or with inputs"
    return ""


def _describe_value(value: object) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


def _save_fault(artifact: Artifact) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "saved"
        artifact.save(folder)
        return "" if folder.is_dir() and any(folder.iterdir()) else "saving wrote nothing"


def _copy_inputs(inputs: Inputs) -> list[Any]:
    """Inputs of their own, which lie in memory as they did."""
    return [_copy(value) if isinstance(value, Tensor) else value for value in inputs]


def _copy(value: Tensor) -> Tensor:
    base = value.untyped_storage().clone()
    fresh = torch.empty(0, dtype=value.dtype)
    return fresh.set_(base, value.storage_offset(), value.shape, value.stride())


def _meaningful_strides(tensor: Tensor) -> list[int]:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [] if tensor.numel() == 0 else [stride for extent, stride in pairs if extent > 1]


def _find_shared_memory(values: Sequence[Any]) -> list[int]:
    """Return for each value the first position that has the same memory; its own if none or no tensor."""
    seen: dict[int, int] = {}
    return [
        seen.setdefault(value.untyped_storage().data_ptr(), position)
        if isinstance(value, Tensor) and value.numel()
        else position
        for position, value in enumerate(values)
    ]
