"""Architectures with random weights through generated code in training and evaluation, beside eager: of
transformers, small; of vision libraries; of a catalogue.

    python -m integration_tests.architectures.sweep
    python -m integration_tests.architectures.sweep --only gpt2,t5,torchvision/resnet18
    python -m integration_tests.architectures.sweep --from timm --device cuda --processes 8
    python -m integration_tests.architectures.sweep --modes autocast,dynamic,decoding,quantised
    python -m integration_tests.architectures.sweep --catalogue models.py --modes training,dynamic

`modes.py` says what the modes are, `catalogue.py` what a catalogue is. Worker processes check one
architecture after the other. Exit status 1 if any model is wrong, raises or is not compiled.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from integration_tests.architectures import catalogue, vision
from integration_tests.architectures.database import NAMES
from integration_tests.architectures.exported import check_exported
from integration_tests.architectures.modes import MODES, NotOfferedError, mode_sample
from integration_tests.modules.checks import Outcome, check
from integration_tests.modules.database import Sample
from integration_tests.modules.sweep import several, summarized, work
from integration_tests.quicker_compiles import quicken_compiles


def check_architecture(
    name: str,
    device: str = "cpu",
    modes: Sequence[str] = ("training", "evaluation"),
    makers: Mapping[str, Callable[[], Any]] | None = None,
) -> list[dict[str, str]]:
    """Outcomes of the architecture in each of `modes` on `device`, as records.

    `makers`: those of the catalogue that has it.
    """
    found = []
    for mode in modes:
        try:
            if makers is not None:
                # Other modes are about how a step is compiled.
                made = catalogue.sample(name, makers[name], training=mode != "evaluation")
            elif "/" in name:
                made = vision.sample(name, training=mode == "training")
            else:
                made = mode_sample(name, mode)
        # transformers refuses some reduced configurations; a worker that dies is another matter
        except Exception as error:  # noqa: BLE001
            detail = str(error) if isinstance(error, NotOfferedError) else f"cannot be made: {error!r}"
            found.append({"mode": mode, "sample": name, "status": "refused", "detail": detail[:200]})
            continue
        found += [
            {"mode": mode, "sample": one.sample, "status": one.status, "detail": one.detail}
            for one in _check_mode(made.on(device), mode)
        ]
    return found


def _check_mode(made: Sample, mode: str) -> list[Outcome]:
    if mode == "exported":
        return [check_exported(made)]
    dynamic = True if mode == "dynamic" else None
    return check([made], dynamic=dynamic, rounding=torch.bfloat16 if mode == "autocast" else None)


def main() -> int:
    quicken_compiles()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names, by commas")
    parser.add_argument(
        "--from", dest="library", choices=("transformers", *vision.LIBRARIES), default="transformers"
    )
    parser.add_argument("--catalogue", type=Path, help="a file that makes other models: see catalogue.py")
    parser.add_argument("--modes", default="training,evaluation", help=f"by commas, of {', '.join(MODES)}")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--processes", type=int, default=1, help="workers at a time")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that an architecture may take")
    parser.add_argument("--results", type=Path, help="append all outcomes to this file, as lines of JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    # Eager's convolutions in f32 may or may not be of this lower precision on a GPU, by their layout.
    torch.backends.cudnn.allow_tf32 = False
    makers = catalogue.read_catalogue(chosen.catalogue) if chosen.catalogue else None
    if makers is not None:
        every = list(makers)
    else:
        every = list(NAMES) if chosen.library == "transformers" else vision.names(chosen.library)
    names = chosen.only.split(",") if chosen.only else every
    if chosen.worker:
        work(names, lambda name: check_architecture(name, chosen.device, chosen.modes.split(","), makers))
        return 0
    options = ["--device", chosen.device, "--modes", chosen.modes]
    if chosen.catalogue:
        options += ["--catalogue", str(chosen.catalogue)]
    found = several("integration_tests.architectures.sweep", names, options, chosen.limit, chosen.processes)
    return summarized("architecture", found, results=chosen.results)


if __name__ == "__main__":
    raise SystemExit(main())
