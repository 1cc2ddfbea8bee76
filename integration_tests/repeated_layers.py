"""Deep models with and without the option `repeat`: what is made of them is the same.

    python -m integration_tests.repeated_layers
    python -m integration_tests.repeated_layers gpt2 t5 --modes training --least 128
    python -m integration_tests.repeated_layers --stacks 1000 1100 --dtype bfloat16

Small models of transformers with random weights and with many layers, or stacks of random layers by their
seeds (`layer_stacks.py`), are captured in inference and in
training, and each graph is lowered and scheduled twice: one layer of many, whose loops and steps are copied
for the others; and each layer by itself. Loops, and the program, have to be the same text but for names. A
row says how many layers were left out by lowering and by the scheduler. Exit status 1 if any graph differs.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from unittest.mock import patch

import torch

from benchmarks.compile_stages import OPTIONS, Captured, capture_program
from coilwork.job import open_job
from coilwork.stages import Compiled, run_stages
from coilwork_ir.loops.text import format_graph
from coilwork_ir.program.text import format_program
from coilwork_lowering import pipeline as lowering
from coilwork_lowering import repeated_layers
from coilwork_scheduler import pipeline as scheduling
from coilwork_scheduler import repeated_regions
from coilwork_tools.explain.report import StageClock
from integration_tests.architectures.database import sample
from integration_tests.layer_stacks import draw_stack
from integration_tests.quicker_compiles import quicken_compiles

LAYERS: Final = 8
# By architecture: what makes its model deep.
MODELS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        **{name: {"n_layer": LAYERS} for name in "gpt2 bloom codegen xlnet".split()},
        **{
            name: {"num_hidden_layers": LAYERS}
            for name in """
                bert convbert electra modernbert squeezebert hubert vit dinov2 mamba mamba2 mixtral
                llama qwen2 gemma2 falcon opt gpt_neox phi3 stablelm olmo2
            """.split()
        },
        "distilbert": {"n_layers": LAYERS},
        "t5": {"num_layers": LAYERS, "num_decoder_layers": LAYERS},
        "whisper": {"encoder_layers": LAYERS, "decoder_layers": LAYERS},
        "bart": {"encoder_layers": LAYERS, "decoder_layers": LAYERS},
        "convnext": {"depths": [1, 1, LAYERS, 1]},
        "poolformer": {"depths": [1, 1, LAYERS, 1]},
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is found about one graph of a model."""

    model: str
    role: str
    calls: int
    layers: str
    regions: str
    kinds: Sequence[str]

    @property
    def is_copied(self) -> bool:
        """True if a stage made copies of layers."""
        return any(part != "-" and not part.endswith("!") for part in f"{self.layers} {self.regions}".split())

    @property
    def text(self) -> str:
        """One line."""
        verdict = f"DIFFERS in {', '.join(self.kinds)}" if self.kinds else "same"
        return (
            f"{self.model:14} {self.role:10} {self.calls:5} calls  layers {self.layers:12}"
            f" regions {self.regions:12} {verdict}"
        )


# ---- comparing ----


@contextmanager
def leave_out(least: int, counts: dict[str, list[str]]) -> Iterator[None]:
    """Have layers left out whose nodes are `least` at least. `counts` gets, by stage, how many layers of how
    many nodes, with "!" where nothing was copied.
    """

    def watch(stage: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def watched(made: Any, shorter: Any) -> Any:
            found = run(made, shorter)
            refused = "!" if found is None else ""
            length = shorter.repetition.length
            counts.setdefault(stage, []).append(f"{shorter.omitted_count}x{length}{refused}")
            return found

        return watched

    with (
        patch.object(repeated_layers, "_LEAST", least),
        patch.object(repeated_regions, "_LEAST", least),
        patch.object(lowering, "lengthen_lowered", watch("lower", repeated_layers.lengthen_lowered)),
        patch.object(scheduling, "lengthen_schedule", watch("schedule", repeated_regions.lengthen_schedule)),
    ):
        yield


def format_renamed(text: str) -> str:
    """The text with names numbered as they are met, without origins and decisions."""
    names: dict[str, str] = {}
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(";")]
    text = re.sub(r" loc\(.*", "", "\n".join(lines))
    return re.sub(r"[%@][A-Za-z_][\w.]*", lambda met: names.setdefault(met[0], f"%{len(names)}"), text)


def compile_both(graph: Captured, least: int) -> tuple[Compiled, Compiled, dict[str, list[str]]]:
    """The graph with and without `repeat`, and what was left out by stage."""
    made: list[Compiled] = []
    counts: dict[str, list[str]] = {}
    for repeat in (True, False):
        options = replace(OPTIONS, repeat=repeat, verify=True)
        gm = copy.deepcopy(graph.gm)
        with leave_out(least, counts):
            job = open_job(
                gm, graph.inputs, role=graph.role, options=options, reports_strides=graph.role == "forward"
            )
            made.append(run_stages(job, fallback=()))
    return made[0], made[1], counts


def compare(model: str, graph: Captured, least: int, folder: Path | None) -> Row:
    """Compile `graph` with and without `repeat`. Texts that differ are written to `folder`."""
    repeated, whole, counts = compile_both(graph, least)
    kinds = []
    for kind, *texts in (
        ("loops", format_graph(repeated.graph), format_graph(whole.graph)),
        ("program", format_program(repeated.program), format_program(whole.program)),
    ):
        one, other = map(format_renamed, texts)
        if one != other:
            kinds.append(kind)
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{model}.{graph.role}.{kind}.repeated.txt").write_text(f"{one}\n")
                (folder / f"{model}.{graph.role}.{kind}.whole.txt").write_text(f"{other}\n")
    calls = sum(node.op == "call_function" for node in graph.gm.graph.nodes)
    return Row(
        model=model,
        role=graph.role,
        calls=calls,
        layers=" ".join(counts.get("lower", ["-"])),
        regions=" ".join(counts.get("schedule", ["-"])),
        kinds=kinds,
    )


def capture_model(name: str, *, training: bool, dtype: torch.dtype, dynamic: bool) -> list[Captured]:
    """The graphs of a deep model."""
    made = sample(name, training=training, given=MODELS[name])
    module, keywords = made.module.to(dtype), made.keywords
    given = [value.to(dtype) if value.dtype.is_floating_point else value for value in keywords.values()]

    def call(*arguments: torch.Tensor) -> tuple[Any, ...]:
        results: tuple[Any, ...] = module(**dict(zip(keywords, arguments, strict=True)))
        return results

    return capture_program(call, given, StageClock(), trained=training, dynamic=dynamic)


def capture_stack(seed: int, *, training: bool, dtype: torch.dtype, dynamic: bool) -> list[Captured]:
    """The graphs of the stack of `seed`."""
    stack = draw_stack(seed)
    torch.manual_seed(seed)
    given = stack.draw_arguments(dtype)
    return capture_program(stack, given, StageClock(), trained=training, dynamic=dynamic)


def main() -> int:
    quicken_compiles()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--stacks", type=int, nargs=2, metavar="SEED", help="stacks of seeds, no models")
    parser.add_argument("--modes", default="inference,training", help="by commas: inference, training")
    parser.add_argument("--least", type=int, default=1, help="nodes that are left out at least")
    parser.add_argument("--dtype", default="float32", help="of weights")
    parser.add_argument("--dynamic", action="store_true", help="sizes are open")
    parser.add_argument("--folder", type=Path, help="texts that differ are written there")
    found = parser.parse_args()
    torch.set_num_threads(1)
    names = found.models if found.stacks is None else [f"stack {seed}" for seed in range(*found.stacks)]
    rows: list[Row] = []
    for name, mode in product(names, found.modes.split(",")):
        dtype, training = getattr(torch, found.dtype), mode == "training"
        if found.stacks is None:
            graphs = capture_model(name, training=training, dtype=dtype, dynamic=found.dynamic)
        else:
            seed = int(name.split()[1])
            graphs = capture_stack(seed, training=training, dtype=dtype, dynamic=found.dynamic)
        for graph in graphs:
            rows.append(compare(name, graph, found.least, found.folder))
            print(rows[-1].text, flush=True)
    different = sum(bool(row.kinds) for row in rows)
    copied = sum(row.is_copied for row in rows)
    print(f"{len(rows)} graphs, layers of {copied} copied, {different} differ")
    return different > 0


if __name__ == "__main__":
    sys.exit(main())
