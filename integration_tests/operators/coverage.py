"""Which operators of torch's database run as generated code: the table in docs/coverage.md.

    python -m integration_tests.operators.coverage --output docs/coverage.md

Each operator's samples are compiled in one graph for the CPU, forward and (where it has gradients) backward,
and the programs that come out are read: a program launches kernels, calls ATen's, or does neither where a
result is a view.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch

from benchmarks.pages import wrap_prose
from coilwork_ir.program import ExternCall, Launch, Program
from coilwork_ir.program.walk import walk
from integration_tests.operators.calls import WAYS, Way, compiled_calls, run_all
from integration_tests.operators.compiled_programs import CompiledProgram, compile_afresh, kept
from integration_tests.operators.core_operators import CORE_TITLE, core_section
from integration_tests.operators.database import Sample, operators, samples

MOST_SAMPLES: Final = 3
DTYPES: Final = (torch.float32, torch.int64, torch.bool, torch.complex64)

# An operator, what its samples became forward and backward, and what is called.
Row: TypeAlias = tuple[str, str, str, str]

HEADER: Final = """\
# Operator coverage

What became of the samples of each operator in torch's own database (`torch.testing._internal`'s `op_db`,
torch {version}), compiled for a CPU in `float32`, or in the first type the operator has. Made by
`python -m integration_tests.operators.coverage`.

- *generated*: kernels of ours, fused with what surrounds them, or views, which need none;
- *mixed*: kernels of ours and calls of ATen's;
- *ATen*: calls of ATen's own kernels inside the compiled program;
- *unsupported*: nothing is compiled, because torch's tracing stops before the compiler.

The last column names the operators that are called. [Core ATen and prims](#core-aten-and-prims) are below.

Of operators on elements, rows, windows and positions, these are calls on purpose:

- first elements and elements by rank (`topk`, `kthvalue`, `median` along a dimension) of 64 bits on a CPU,
  where ATen's kernels are faster, and `mode` and the median of a whole tensor; on accelerators sorts of rows
  that do not fit on chip;
- random numbers where they are to be eager's, as in this table; by default they are generated on
  accelerators;
- Bessel functions of the first and second kind in `float64`, in which eager's are too coarse to be equal to;
- results whose size depends on data (`nonzero`, `masked_select`, `unique`, `bincount`);
- windows of different sizes on a CPU backwards (`adaptive_avg_pool2d`), and Euclidean distances of many rows,
  which are a matrix product;
- positions that are repeated (`repeat_interleave`) on a CPU, and products of complex numbers there but for
  rows that are read as pairs of real numbers, where ATen's kernels are faster;
- `histc`, whose bins on a CPU end where vectors of eager's `linspace` round, and `hash_tensor`;
- samples without elements, and some of numbers without dimensions: that is why a common operator may be
  *mixed*.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What one operator compiles to: launches of kernels, and the operators called, by name; `None` if
    nothing was compiled.
    """

    launches: int
    calls: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The word in the table."""
        if not self.calls:
            return "generated"
        return "mixed" if self.launches else "ATen"


def coverage(op: Any, *, backward: bool) -> Coverage | None:
    """What samples of `op` compile to, all in one graph, or the first that eager takes; None if nothing was
    compiled.
    """
    known = op.supported_backward_dtypes("cpu") if backward else op.supported_dtypes("cpu")
    dtype = next((one for one in DTYPES if one in known), None)
    if dtype is None or (backward and not op.supports_autograd):
        return None
    way = WAYS["backward" if backward else "forward"]
    try:
        given = samples(op, "cpu", dtype, requires_grad=backward, most=MOST_SAMPLES)
    except Exception:  # noqa: BLE001  the database's own failures
        return None
    for group in (given, *([sample] for sample in given)):
        programs = [
            one.program for one in compiled_programs(op, way, group) if not backward or one.role == "backward"
        ]
        if programs:
            return read(programs)
    return None


def compiled_programs(op: Any, way: Way, group: Sequence[Sample]) -> list[CompiledProgram]:
    """Every graph that the samples compile to."""
    torch._dynamo.reset()
    with warnings.catch_warnings(), kept() as found:
        warnings.simplefilter("ignore")
        try:
            run_all(compile_afresh(compiled_calls(op.op, way)), group, way)
        except Exception:  # noqa: BLE001  what eager refuses, too
            return []
    return found


def read(programs: Sequence[Program]) -> Coverage:
    """Launches and calls in programs."""
    instructions = [
        instruction for program in programs for part in walk(program) for instruction in part.instructions
    ]
    calls = {one.target.removesuffix(".default") for one in instructions if isinstance(one, ExternCall)}
    return Coverage(launches=sum(isinstance(one, Launch) for one in instructions), calls=tuple(sorted(calls)))


def rows(names: Sequence[str]) -> list[tuple[str, Coverage | None, Coverage | None]]:
    """Name, forward and backward of each operator."""
    database = operators()
    found = []
    for name in names:
        forward = coverage(database[name], backward=False)
        found.append((name, forward, coverage(database[name], backward=True)))
    return found


def shown(found: Sequence[tuple[str, Coverage | None, Coverage | None]]) -> list[Row]:
    """The cells of each operator's row."""
    result = []
    for name, one, other in found:
        calls = dict.fromkeys((*(one.calls if one else ()), *(other.calls if other else ())))
        listed = ", ".join(f"`{call}`" for call in calls)
        result.append((name, _kind(one), "" if other is None else other.kind, listed))
    return result


def renewed(text: str, rows: Sequence[Row]) -> list[Row]:
    """The rows of a page, with those of `rows` in place of older ones."""
    table = text.partition(CORE_TITLE)[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    old = {name.strip("`"): (name.strip("`"), one, other, calls) for name, one, other, calls in cells}
    return [row for _, row in sorted({**old, **{row[0]: row for row in rows}}.items())]


def page(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    kinds = ("generated", "mixed", "ATen", "unsupported")
    forward, backward = (Counter(row[k] for row in rows) for k in (1, 2))
    lines = [HEADER.format(version=torch.__version__.partition("+")[0])]
    lines += ["| | " + " | ".join(kinds) + " |\n", "|---|" + "---:|" * len(kinds) + "\n"]
    lines.append("| forward | " + " | ".join(str(forward[kind]) for kind in kinds) + " |\n")
    lines.append("| backward | " + " | ".join(str(backward[kind]) for kind in kinds[:3]) + " | |\n\n")
    lines += ["| operator | forward | backward | calls |\n", "|---|---|---|---|\n"]
    lines += [f"| `{name}` | {one} | {other} | {calls} |\n" for name, one, other, calls in rows]
    return wrap_prose("".join(lines) + core_section())


def _kind(one: Coverage | None) -> str:
    return "unsupported" if one is None else one.kind


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("docs/coverage.md"))
    parser.add_argument("--only", default="", help="operators, by commas: their rows alone are made anew")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    torch._dynamo.config.capture_scalar_outputs = True
    names = chosen.only.split(",") if chosen.only else sorted(operators())
    found = shown(rows(names))
    if chosen.only and chosen.output.exists():
        found = renewed(chosen.output.read_text(), found)
    chosen.output.write_text(page(found))


if __name__ == "__main__":
    main()
