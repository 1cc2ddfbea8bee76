"""Tests that are text files: a graph or a kernel, the passes that are applied, and what must come of it.

    # A scan of a reversed row, whose result is read reversed, runs from the end.
    # pass: turn-scans
    # target: sm_90

    graph @g {
      ...
    }

    # expect:
    graph @g {
      ...
    }

Comment lines at the top say what holds and why, and give settings as `NAME: VALUE`. There is one `expect`
line for each run. `expect: NAME=VALUE ...` changes settings for its run.

A test runs the passes, compares the text, and runs the input and the result on the interpreter with random
tensors. Both must give the same. These settings steer that run:

- `size.s0: 3` is the value of a symbol; a size without one is its lower bound, at least 3.
- `below.idx: 5` bounds the random integers of an input; without it they are below 4.
- `positive: x, y` are inputs that hold positive numbers alone.
- `tolerance: 1e-5` is by how much floats may differ, 0 that they are equal. Without it that depends on their
  type, as in `check_codegen`.
- `not run: WHY` leaves the interpreter out. It is for loops over more than `MOST_POINTS` points.

Needs torch (`pip install coilwork-ir[interpreter]`).
"""

from __future__ import annotations

import difflib
import math
import re
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import torch
from torch import Tensor

from coilwork_ir.buffers import Buffer
from coilwork_ir.conformance.check import TOLERANCES
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, evaluate, get_extent
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.kernels.interpreter import interpret_kernel, interpret_schedule
from coilwork_ir.kernels.nodes import Kernel, Schedule
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.kernels.verify import verify_kernel, verify_schedule
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.nodes import Graph, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.loops.verify import verify_graph

MOST_POINTS: Final = 1 << 23
"""Loops over more points are too slow for the interpreter in a test."""

Settings: TypeAlias = Mapping[str, str]
_SETTING = re.compile(r"# (not run|[a-z][\w.-]*): *(.*)")
_OWN_SETTINGS = re.compile(r"size\.\w+|below\.\w+|positive|tolerance|not run")
_EXPECT: Final = "# expect:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The expected form of the input: the settings that differ from the file's, as written, and the text."""

    changes: str
    text: str

    def settings(self, of_file: Settings) -> dict[str, str]:
        """Return the file's settings with the changes."""
        return {**of_file, **dict(word.split("=", 1) for word in self.changes.split())}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCase:
    """A test file.

    Attributes:
        head: its comment lines, as written.
        settings: those among them that are settings, by name.
        given: the text of the graph or kernel.
        expectations: one for each run.
    """

    path: Path
    head: str
    settings: Settings
    given: str
    expectations: tuple[Expectation, ...]

    def format(self, texts: list[str]) -> str:
        """Return the file with `texts` as what is expected."""
        parts = [self.head.rstrip(), self.given.strip()]
        for expectation, text in zip(self.expectations, texts, strict=True):
            parts.append(f"{_EXPECT} {expectation.changes}".rstrip() + "\n" + text.strip())
        return "\n\n".join(parts) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed:
    """The result of passes on an input.

    Attributes:
        text: how the file shows it.
        result: what the interpreter runs: of a kernel, also several that run one after the other. Arguments
            that the input does not have are memory for the kernels alone.
    """

    text: str
    result: Graph | Schedule | Kernel | tuple[Kernel, ...]


Transform: TypeAlias = Callable[[Graph | Kernel, Settings], Transformed]
"""Applies the passes that the settings name to a graph or a kernel."""


def find_text_cases(folder: Path) -> dict[str, Path]:
    """Return the test files below `folder`, each by the name that a test of it has: its path without the
    suffix.
    """
    files = sorted(folder.rglob("*.txt"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def read_text_case(path: Path) -> TextCase:
    """Return the test file `path`.

    Raises:
        ValueError: the file has no input, or nothing is expected of it.
    """
    head: list[str] = []
    blocks: list[list[str]] = [[]]
    changes: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(_EXPECT):
            changes.append(line.removeprefix(_EXPECT).strip())
            blocks.append([])
        elif line.startswith("#") and len(blocks) == 1 and not any(blocks[0]):
            head.append(line)
        else:
            blocks[-1].append(line)
    given, *expected = ("\n".join(block).strip() + "\n" for block in blocks)
    if not given.strip() or not expected:
        raise ValueError(f"{path}: wanted an input and at least one line {_EXPECT!r}")
    settings = [(match[1], match[2]) for line in head if (match := _SETTING.fullmatch(line))]
    return TextCase(
        path=path,
        head="\n".join(head),
        settings=dict(settings),
        given=given,
        expectations=tuple(Expectation(changes=c, text=t) for c, t in zip(changes, expected, strict=True)),
    )


def check_text_case(
    path: Path, transform: Transform, *, known: Collection[str] = (), update: bool = False
) -> None:
    """Run the passes of a test file on its input, compare the text, and run both on the interpreter.

    `known` names the settings that `transform` reads. With `update` the file is rewritten to expect what is
    computed now; results of the interpreter are compared all the same.

    Raises:
        AssertionError: the text is another one, or the interpreter computes something else. The message holds
            the difference.
        ValueError: the file has no input or no expectation, or a setting that nobody knows.
    """
    case = read_text_case(path)
    given = parse_kernel(case.given) if case.given.startswith("kernel") else parse_graph(case.given)
    _verify(given)
    texts: list[str] = []
    for expectation in case.expectations:
        settings = expectation.settings(case.settings)
        unknown = [name for name in settings if name not in known and not _OWN_SETTINGS.fullmatch(name)]
        if unknown:
            raise ValueError(f"{path}: there is no setting {unknown[0]!r}")
        transformed = transform(given, settings)
        texts.append(transformed.text)
        _verify(transformed.result)
        _compare_results(case, settings, given, transformed.result)
    written = path.read_text(encoding="utf-8")
    now = case.format(texts)
    if update:
        path.write_text(now, encoding="utf-8")
    elif now != written:
        lines = difflib.unified_diff(written.splitlines(), now.splitlines(), "expected", "found", lineterm="")
        raise AssertionError("\n".join([f"{path}: not the expected text (`--update` rewrites it)", *lines]))


def _verify(value: Graph | Schedule | Kernel | tuple[Kernel, ...]) -> None:
    match value:
        case Graph():
            verify_graph(value)
        case Schedule():
            verify_schedule(value)
        case Kernel():
            verify_kernel(value)
        case _:
            for kernel in value:
                verify_kernel(kernel)


@dataclass(slots=True)
class _Draw:
    """Draws inputs as the settings of a test file say."""

    settings: Settings
    generator: torch.Generator
    sizes: dict[str, int] = field(default_factory=dict)

    def size(self, symbol: Expr) -> int:
        given = self.settings.get(f"size.{symbol.name}")
        size = max(symbol.lo or 0, 3) if given is None else int(given)
        self.sizes[symbol.name] = size
        return size

    def values(self, name: str, dtype: DType, count: int) -> Tensor:
        """`count` values: multiples of an eighth in [-2, 2], or small integers."""
        if dtype.is_float:
            positive = name in re.findall(r"\w+", self.settings.get("positive", ""))
            low = 1 if positive else -16
            drawn = torch.randint(low, 17, (count,), generator=self.generator, dtype=torch.int32) / 8
        elif dtype.is_bool:
            drawn = torch.randint(2, (count,), generator=self.generator)
        else:
            bound = int(self.settings.get(f"below.{name}", "4"))
            drawn = torch.randint(bound, (count,), generator=self.generator)
        return drawn.to(torch_dtype(dtype))


def _compare_results(
    case: TextCase,
    settings: Settings,
    given: Graph | Kernel,
    result: Graph | Schedule | Kernel | tuple[Kernel, ...],
) -> None:
    draw = _Draw(settings=settings, generator=torch.Generator().manual_seed(zlib.crc32(case.given.encode())))
    for symbol in given.sizes if isinstance(given, Kernel) else given.symbols:
        draw.size(symbol)
    points = _count_points(given, draw.sizes)
    if (points > MOST_POINTS) != ("not run" in settings):
        verb = "needs" if points > MOST_POINTS else "is small enough to run, and must not have"
        raise AssertionError(f"{case.path}: {points} points; the file {verb} the setting 'not run'")
    if "not run" in settings:
        return
    if isinstance(given, Kernel):
        assert not isinstance(result, Graph | Schedule), "a kernel becomes kernels"
        kernels = (result,) if isinstance(result, Kernel) else result
        wanted, found = _run_kernels(draw, given, kernels)
    else:
        assert isinstance(result, Graph | Schedule), "a graph becomes a graph or a schedule"
        wanted, found = _run_graphs(draw, given, result)
    for name, value in wanted.items():
        tolerance = float(settings.get("tolerance", TOLERANCES.get(value.dtype, 0.0)))
        try:
            torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance, equal_nan=True)
        except AssertionError as error:
            raise AssertionError(f"{case.path}: {name} is computed otherwise. {error}") from None


def _count_points(value: Graph | Kernel, sizes: Mapping[str, int]) -> int:
    """Return the points of all loops of `value`."""
    if isinstance(value, Kernel):
        spaces = [[r.extent for r in value.ranges]]
    else:
        loops = [node for node in value.nodes if isinstance(node, Pointwise | Reduce | Scan | Scatter | Sort)]
        spaces = [
            [get_extent(r) for r in (*node.ranges, *(node.axes if isinstance(node, Reduce) else ()))]
            for node in loops
        ]
    return sum(math.prod(evaluate(extent, sizes) for extent in space) for space in spaces)


def _run_kernels(
    draw: _Draw, given: Kernel, results: tuple[Kernel, ...]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    memory: dict[str, Tensor] = {}
    for arg in given.args:
        span = max(evaluate(arg.span, draw.sizes), 0)
        if arg.role == "out":
            # what is not written shows
            memory[arg.name] = torch.full((span,), 77, dtype=torch_dtype(arg.dtype))
        else:
            memory[arg.name] = draw.values(arg.name, arg.dtype, span)
    wanted, found = ({name: value.clone() for name, value in memory.items()} for _ in range(2))
    interpret_kernel(given, wanted, draw.sizes)
    for kernel in results:
        for arg in kernel.args:
            if arg.name not in found:
                span = max(evaluate(arg.span, draw.sizes), 0)
                found[arg.name] = torch.full((span,), 77, dtype=torch_dtype(arg.dtype))
        interpret_kernel(kernel, {arg.name: found[arg.name] for arg in kernel.args}, draw.sizes)
    # what is left in a workspace is nobody's business
    return {name: value for name, value in wanted.items() if name != given.workspace}, found


def _run_graphs(
    draw: _Draw, given: Graph, result: Graph | Schedule
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    inputs: list[Tensor | int] = []
    for entry in given.inputs:
        if isinstance(entry, Buffer):
            shape = [evaluate(e, draw.sizes) for e in entry.shape]
            strides = [evaluate(s, draw.sizes) for s in entry.strides]
            count = max(evaluate(entry.span, draw.sizes), 0)
            inputs.append(draw.values(entry.name, entry.dtype, count).as_strided(shape, strides))
        else:
            inputs.append(evaluate(entry, draw.sizes))
    constants = {
        c.key: draw.values(c.buffer.name, c.buffer.dtype, max(evaluate(c.buffer.span, draw.sizes), 0))
        .as_strided(
            [evaluate(e, draw.sizes) for e in c.buffer.shape],
            [evaluate(s, draw.sizes) for s in c.buffer.strides],
        )
        for c in given.constants
    }  # fmt: skip
    results: list[dict[str, Tensor]] = []
    for value in (given, result):
        # each run has memory of its own, as runs may overwrite inputs
        own = [_copy(entry) if isinstance(entry, Tensor) else entry for entry in inputs]
        kept = {key: _copy(tensor) for key, tensor in constants.items()}
        run = interpret_graph(value, own, kept) if isinstance(value, Graph) else (
            interpret_schedule(value, own, kept)
        )  # fmt: skip
        named = [*((f"result {k}", v) for k, v in enumerate(run)),
                 *((f"input {k} afterwards", v) for k, v in enumerate(own))]  # fmt: skip
        results.append({name: torch.as_tensor(v) for name, v in named if v is not None})
    return results[0], results[1]


def _copy(tensor: Tensor) -> Tensor:
    """`tensor` in memory of its own, laid out alike."""
    size = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) + 1 if tensor.numel() else 0
    line = tensor.as_strided((size,), (1,)).clone()
    return line.as_strided(tensor.shape, tensor.stride())
