"""Which of the operators in the benchmark suite's models run as generated code: the page
docs/coverage-models.md.

    python -m integration_tests.operators.in_models --output docs/coverage-models.md

Every model is compiled for the CPU at its reduced size, forward and, where the suite trains it, a training
step with its optimizer. Operators are those of the graphs that AOTAutograd captures, after the decompositions
that Coilwork asks for; the programs that come out say which of them are calls of ATen. No kernel is built.
"""

from __future__ import annotations

import argparse
import contextlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch

from benchmarks.models import CASES, ModelCase, Setting, Size, find_case, instantiate
from benchmarks.pages import wrap_prose
from benchmarks.training import make_training_step
from integration_tests.operators.compiled_programs import CompiledProgram, compile_afresh, kept

HEADER: Final = """\
# Operators of the benchmark models

Which operators of the models in `benchmarks/models` run as kernels of ours, compiled for a CPU in `float32`
at the reduced size, forward and, where the suite trains the model, with backward and optimizer (torch
{version}). Operators are those of the graphs that AOTAutograd captures, after decompositions; views count as
generated, for they need no kernel. Made by `python -m integration_tests.operators.in_models`.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How often an operator occurs in the graphs of one or more models, and how often the programs leave it
    to ATen.
    """

    nodes: int
    calls: int

    @property
    def kind(self) -> str:
        """The word in the table."""
        if not self.calls:
            return "generated"
        return "mixed" if self.calls < self.nodes else "ATen"


def uses(found: Sequence[CompiledProgram]) -> dict[str, Use]:
    """By operator, e.g. `"aten.mm"`, its uses in all graphs together."""
    nodes = Counter(name for one in found for name in operators_of(one.graph))
    calls = Counter(
        name for one in found for call in one.calls for name in {packet(origin.op) for origin in call.origins}
    )
    return {name: Use(nodes=nodes[name], calls=calls[name]) for name in sorted({*nodes, *calls})}


def operators_of(graph: torch.fx.GraphModule) -> Iterator[str]:
    """The operators on tensors that a graph calls, those of the graphs nested in it among them, once per
    call.
    """
    for module in graph.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload) and returns_tensors(node.target):
                yield packet(str(node.target))


def returns_tensors(operator: torch._ops.OpOverload) -> bool:
    """Whether the operator computes, and does not just read a size or check a number."""
    return any("Tensor" in str(result.type) for result in operator._schema.returns)


def packet(operator: str) -> str:
    """The operator without its overload: `"aten.mm"` of `"aten.mm.default"`."""
    return ".".join(operator.split(".")[:2])


def compiled_models(case: ModelCase) -> list[CompiledProgram]:
    """What a model's forward compiles to, and what its training step does if it has one."""
    setting = Setting(size=Size.REDUCED, device=torch.device("cpu"), dtype=torch.float32)
    settings = torch._dynamo.config.patch(dict(case.dynamo)) if case.dynamo else contextlib.nullcontext()
    torch._dynamo.reset()
    # calls are counted as they were captured; that one would make one of two
    compiled = partial(compile_afresh, skip_rewrites=["add-to-addmm"])
    with warnings.catch_warnings(), settings, kept() as found:
        warnings.simplefilter("ignore")
        evaluated = instantiate(case, setting, training=False)
        with torch.no_grad():
            compiled(evaluated.module)(*evaluated.inputs)
        if case.train:
            trained = instantiate(case, setting, training=True)
            make_training_step(trained, compiled)(*trained.inputs)
    return found


def page(models: Mapping[str, Mapping[str, Use]]) -> str:
    """Counts, the operators that ATen runs, counts per model, and all operators, as Markdown."""
    total: dict[str, Use] = {}
    users: dict[str, list[str]] = defaultdict(list)
    for model, found in models.items():
        for name, use in found.items():
            known = total.get(name, Use(nodes=0, calls=0))
            total[name] = Use(nodes=known.nodes + use.nodes, calls=known.calls + use.calls)
            users[name].append(model)
    kinds = Counter(use.kind for use in total.values())
    lines = [
        HEADER.format(version=torch.__version__.partition("+")[0]),
        f"**{kinds['generated']} of {len(total)} operators ({share(kinds['generated'], len(total))}) "
        "run as generated code "
        f"wherever they occur**, {kinds['mixed']} in some places, {kinds['ATen']} are always ATen's; of the "
        f"{sum(use.nodes for use in total.values())} calls in all graphs, "
        f"{sum(use.calls for use in total.values())} "
        "go to ATen.\n\n## Left to ATen\n\n",
        "| operator | occurs | of these ATen | models |\n|---|---:|---:|---|\n",
    ]
    lines += [
        f"| `{name}` | {use.nodes} | {use.calls} | {', '.join(users[name])} |\n"
        for name, use in sorted(total.items())
        if use.calls
    ]
    lines.append("\n## By model\n\n| model | operators | generated | share |\n|---|---:|---:|---:|\n")
    for model, found in models.items():
        generated = sum(use.kind == "generated" for use in found.values())
        lines.append(f"| {model} | {len(found)} | {generated} | {share(generated, len(found))} |\n")
    lines.append("\n## Generated\n\n")
    lines.append(", ".join(f"`{name}`" for name, use in sorted(total.items()) if not use.calls) + "\n")
    return wrap_prose("".join(lines))


def share(part: int, whole: int) -> str:
    """In percent, with one digit."""
    return f"{100 * part / whole:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("docs/coverage-models.md"))
    parser.add_argument("--models", default="", help="by commas; all without it")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    cases = [find_case(name) for name in chosen.models.split(",")] if chosen.models else CASES
    chosen.output.write_text(page({case.name: uses(compiled_models(case)) for case in cases}))


if __name__ == "__main__":
    main()
