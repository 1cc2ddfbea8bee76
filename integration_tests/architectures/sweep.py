"""Architectures of transformers, small and with random weights, through generated code in training and evaluation, beside eager.

    python -m integration_tests.architectures.sweep
    python -m integration_tests.architectures.sweep --only gpt2,t5

A worker process checks them one after the other. Exit status 1 if any model is wrong, raises or is not compiled.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from integration_tests.architectures.database import NAMES, sample
from integration_tests.modules.checks import check
from integration_tests.modules.sweep import outcomes, summarized, work


def check_architecture(name: str) -> list[dict[str, str]]:
    """Outcomes of a training step and of inference, as records."""
    found = check([sample(name, training=True)]) + check([sample(name, training=False)])
    return [{"sample": one.sample, "status": one.status, "detail": one.detail} for one in found]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names, by commas")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that an architecture may take")
    parser.add_argument("--results", type=Path, help="append all outcomes to this file, as lines of JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    names = chosen.only.split(",") if chosen.only else list(NAMES)
    if chosen.worker:
        work(names, check_architecture)
        return 0
    found = outcomes("integration_tests.architectures.sweep", names, [], chosen.limit)
    return summarized("architecture", found, results=chosen.results)


if __name__ == "__main__":
    raise SystemExit(main())
