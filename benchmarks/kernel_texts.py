"""The Triton texts of all kernels of the memory-bound cases and of models, for a GPU that is not there, from
one source tree or from two: what a change does to kernels that it does not mean to change.

    python -m benchmarks.kernel_texts write new.json [WORDS] [--tree DIR] [--models gpt2,resnet50] [--jobs 4]
    python -m benchmarks.kernel_texts compare old.json new.json [--diff]

`write` runs the packages and the cases of a tree, this one by default. `compare` lists the cases whose
launches differ and says what differs, one a line with tabs between: set, name, what. Comments, docstrings and
names of kernels, which end with digests of their definitions, are no differences.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

ROOT: Final = Path(__file__).parents[1]
# The word that the child processes of `write` are called with.
_PART: Final = "write-part"
_TYPES: Final = ("bf16", "f32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One launch or ATen call of a program.

    Attributes:
        name: of the kernel or the operator.
        text: the kernel's module; empty for an operator.
        launch: how it is launched: the grid, the first configuration, and mappings where the tree has them.
    """

    name: str
    text: str = ""
    launch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What a case launches, or the `failure` for which nothing is known."""

    set: str
    steps: tuple[Step, ...] = ()
    failure: str = ""


def to_json(found: dict[str, Launched], *, indent: int | None = 1) -> str:
    """Return `found`, by name of the case, as JSON."""
    return json.dumps({name: asdict(launched) for name, launched in found.items()}, indent=indent)


def read_json(text: str) -> dict[str, Launched]:
    """Read what `to_json` gave."""
    return {
        name: Launched(
            set=entry["set"], steps=tuple(Step(**step) for step in entry["steps"]), failure=entry["failure"]
        )
        for name, entry in json.loads(text).items()
    }


# ---- comparing ----


def normalize_text(text: str, names: Iterable[str]) -> str:
    """A module without comments, docstrings, layout and the `names` of kernels."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef):
            node.body = [part for part in node.body if not _is_text(part)] or [ast.Pass()]
    return _drop_names(ast.unparse(tree), names)


def _is_text(statement: ast.stmt) -> bool:
    """Tell if a statement is a docstring, or one that stands where text was put together."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _drop_names(text: str, names: Iterable[str]) -> str:
    for name in sorted(names, key=len, reverse=True):
        # parts of a kernel, and its versions by size, have its name with a word behind it
        text = re.sub(rf"\b{re.escape(name)}(?![0-9A-Za-z])", "KERNEL", text)
    return text


def describe_difference(old: Launched, new: Launched) -> str:
    """Return what differs between two accounts of one case, in a few words; empty if nothing does."""
    if old.failure or new.failure:
        return "" if old.failure and new.failure else f"failed: {old.failure or new.failure}"
    counts = [
        (sum(bool(step.text) for step in one.steps), sum(not step.text for step in one.steps))
        for one in (old, new)
    ]
    if counts[0] != counts[1]:
        (kernels, calls), (kernels_now, calls_now) = counts
        return f"{kernels} kernels and {calls} calls are {kernels_now} and {calls_now}"
    names = {step.name for one in (old, new) for step in one.steps if step.text}
    texts = launches = 0
    for before, after in zip(old.steps, new.steps, strict=True):
        if bool(before.text) != bool(after.text) or (not before.text and before.name != after.name):
            return f"order: {before.name} is {after.name}"
        texts += normalize_text(before.text, names) != normalize_text(after.text, names)
        launches += _drop_names(before.launch, names) != _drop_names(after.launch, names)
    found = [f"{count} {word}" for count, word in ((texts, "texts"), (launches, "launches")) if count]
    return ", ".join(found)


def compare(old: dict[str, Launched], new: dict[str, Launched]) -> Iterator[tuple[str, str, str]]:
    """Set, name and difference of every case that differs, those of one account alone included."""
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new:
            yield (new.get(name) or old[name]).set, name, "new case" if name in new else "case is gone"
        elif difference := describe_difference(old[name], new[name]):
            yield new[name].set, name, difference


def diff(old: Launched, new: Launched) -> Iterator[str]:
    """Lines of a unified diff of two accounts of one case, without what is no difference."""
    names = {step.name for one in (old, new) for step in one.steps if step.text}
    sides = []
    for one in (old, new):
        texts = [normalize_text(step.text, names) if step.text else step.name for step in one.steps]
        launches = [_drop_names(step.launch, names) for step in one.steps]
        sides.append("\n".join(part for pair in zip(texts, launches, strict=True) for part in pair))
    before, after = (side.splitlines() for side in sides)
    yield from difflib.unified_diff(before, after, "old", "new", lineterm="", n=2)


# ---- writing: imports of the packages wait for the process that has the tree's path ----


def case_names(words: Sequence[str], sets: Sequence[str]) -> list[str]:
    from benchmarks.memory_bound.case import SETS
    from benchmarks.memory_bound.cases import select

    return [case.name for case in select(words, sets or SETS)]


def list_case_launches(name: str, target: str) -> Launched:
    """Return what the memory-bound case `name` launches, compiled for the sizes that it is traced with."""
    import torch

    from benchmarks.memory_bound.case import Make, call_of
    from benchmarks.memory_bound.cases import find_case
    from benchmarks.planner import Planner

    case = find_case(name)
    make = Make(device=torch.device("cpu"), values=False)
    inputs = case.inputs(make, *(case.traced or case.size))
    torch._dynamo.reset()
    torch.manual_seed(0)
    planner = Planner(target=target)
    call_of(case, torch.compile(case.function, backend=planner, dynamic=case.dynamic), inputs)()
    steps = [
        step
        for program, likely in zip(planner.programs, planner.likely, strict=True)
        for step in steps_of(program, target, likely)
    ]
    return Launched(set=case.set, steps=tuple(steps))


def list_model_launches(
    name: str, target: str, *, train: bool, dtype: str, size: Literal["full", "reduced"] = "full"
) -> Launched:
    """Return what an inference call of the model `name` launches, or its forward and backward."""
    from benchmarks.model_plan import DTYPES, programs_of
    from benchmarks.models import Size, find_case
    from coilwork_frontend.likely_sizes import list_likely_arguments

    case = find_case(name)
    if train and not case.train:
        return Launched(set="models")
    programs = programs_of(case, target=target, train=train, dtype=DTYPES[dtype], size=Size(size))
    steps = [step for one in programs for step in steps_of(one, target, list_likely_arguments(one, ()))]
    return Launched(set="models", steps=tuple(steps))


def steps_of(program: Any, target: str, likely: dict[str, tuple[int, ...]]) -> Iterator[Step]:
    """The launches and calls of a program and of those nested in it, in order."""
    from coilwork.compile_options import CompileOptions
    from coilwork.registries import find_codegen
    from coilwork.stage_settings import make_generator_settings
    from coilwork_ir.emission import Generation, declare_capabilities, emit_kernels
    from coilwork_ir.mapping import format_versions
    from coilwork_ir.program.nodes import ExternCall, Launch
    from coilwork_ir.program.walk import walk
    from coilwork_ir.target import TARGETS, Targets

    generation = Generation(
        targets=declare_capabilities(Targets(main=TARGETS[target]), find_codegen),
        find=find_codegen,
        settings=make_generator_settings(CompileOptions(strict=True)),
        likely=likely,
    )
    sources = emit_kernels(program, generation)
    for part in walk(program):
        for instruction in part.instructions:
            if isinstance(instruction, Launch):
                source = sources[instruction.kernel]
                versions = "" if source.versions is None else format_versions(source.versions)
                launch = f"grid {source.grid}\nconfigs {source.configs}\n{versions}"
                yield Step(name=source.name, text=source.text, launch=launch)
            elif isinstance(instruction, ExternCall):
                yield Step(name=instruction.target)


def list_launches(job: Sequence[str], target: str) -> Launched:
    """Return what `job` launches: `case NAME`, or `infer` or `train`, a type, and a model's name."""
    from coilwork_ir.errors import CoilworkIRError

    kind, *rest = job
    try:
        if kind == "case":
            return list_case_launches(rest[0], target)
        return list_model_launches(rest[1], target, train=kind == "train", dtype=rest[0])
    # a case that fails is a line of the comparison; what a backend raises Dynamo wraps in errors of its own
    except (RuntimeError, CoilworkIRError) as error:
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"
        return Launched(set="" if kind == "case" else "models", failure=reason)


def run_in_tree(tree: Path, arguments: Sequence[str], **streams: Any) -> subprocess.Popen[str]:
    """This file as a process that imports everything from `tree`."""
    paths = [*sorted(map(str, tree.glob("packages/*/src"))), str(tree)]
    script = f"import runpy; runpy.run_path({str(Path(__file__))!r}, run_name='__main__')"
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""},
        text=True,
        **streams,
    )


def write(found: argparse.Namespace) -> int:
    """Have `found.jobs` processes each write a part, then put these together."""
    parts = [found.file.with_suffix(f".part{number}") for number in range(found.jobs)]
    shared = ["--target", found.target, "--sets", ",".join(found.sets), "--models", ",".join(found.models)]
    processes = [
        run_in_tree(
            found.tree.resolve(),
            [_PART, str(part.resolve()), *found.words, *shared, "--part", f"{number}/{found.jobs}"],
        )
        for number, part in enumerate(parts)
    ]
    codes = [process.wait() for process in processes]
    together: dict[str, Launched] = {}
    for part in parts:
        for line in part.read_text().splitlines() if part.exists() else ():
            together |= read_json(line)
        part.unlink(missing_ok=True)
    found.file.write_text(to_json(dict(sorted(together.items()))) + "\n")
    failed = {name: one.failure for name, one in together.items() if one.failure}
    print(f"{len(together)} cases, {sum(len(one.steps) for one in together.values())} steps")
    print("".join(f"{name}\tfailed: {failure}\n" for name, failure in failed.items()), end="")
    return max(codes)


def write_part(found: argparse.Namespace) -> int:
    """Every so-many-th case and model, each a line of JSON as soon as it is known."""
    cases = [] if found.models and not (found.words or found.sets) else case_names(found.words, found.sets)
    jobs: list[tuple[str, ...]] = [("case", name) for name in cases]
    jobs += [(mode, dtype, name) for name in found.models for mode in ("infer", "train") for dtype in _TYPES]
    number, of = map(int, found.part.split("/"))
    with found.file.open("w") as part:
        for job in jobs[number::of]:
            name = job[1] if job[0] == "case" else " ".join((job[2], *job[:2]))
            print(to_json({name: list_launches(job, found.target)}, indent=None), file=part, flush=True)
    return 0


def names(text: str) -> tuple[str, ...]:
    """A comma-separated list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_texts", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("write", _PART):
        writes = commands.add_parser(command, help="write the texts of a tree's kernels as JSON")
        writes.add_argument("file", type=Path)
        writes.add_argument("words", nargs="*", help="only cases whose name has one of these in it")
        writes.add_argument("--sets", type=names, default=(), metavar="A,B", help="default: all of them")
        writes.add_argument(
            "--models", type=names, default=(), metavar="A,B", help="models too; alone without words or sets"
        )
        writes.add_argument("--target", default="sm_90")
        writes.add_argument("--tree", type=Path, default=ROOT, help="a checkout whose packages are to run")
        writes.add_argument("--jobs", type=int, default=1, help="processes")
        writes.add_argument("--part", default="0/1", help=argparse.SUPPRESS)
    compares = commands.add_parser("compare", help="list the cases whose texts differ")
    compares.add_argument("old", type=Path)
    compares.add_argument("new", type=Path)
    compares.add_argument("--diff", action="store_true", help="print what differs, too")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    found = parse(arguments)
    if found.command == "write":
        return write(found)
    if found.command == _PART:
        return write_part(found)
    old, new = (read_json(path.read_text()) for path in (found.old, found.new))
    differences = list(compare(old, new))
    for which, name, difference in differences:
        print(f"{which}\t{name}\t{difference}")
        if found.diff and name in old and name in new:
            print("\n".join(diff(old[name], new[name])))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
