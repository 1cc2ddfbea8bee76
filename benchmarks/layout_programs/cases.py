"""Cases of the table: a program and how it runs, as a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import get_args

import torch

from benchmarks.layout_programs.programs import PROGRAMS, Precision, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A program and how it runs; its text is `convnext/train/bf16/own`."""

    program: str
    setting: Setting

    def __str__(self) -> str:
        mode = "train" if self.setting.train else "infer"
        order = "last" if self.setting.is_channels_last else "own"
        return "/".join((self.program, mode, self.setting.precision, order))

    @staticmethod
    def parse(text: str) -> Case:
        """Return the case that prints as `text`."""
        program, mode, precision, order = text.split("/")
        precisions: tuple[Precision, ...] = get_args(Precision)
        setting = Setting(
            precision=next(each for each in precisions if each == precision),
            is_channels_last=order == "last",
            train=mode == "train",
        )
        return Case(program=program, setting=setting)


def list_cases(
    programs: Iterable[str] = PROGRAMS,
    modes: Iterable[str] = ("train", "infer"),
    precisions: Iterable[str] = ("bf16",),
    orders: Iterable[str] = ("own",),
) -> Iterator[Case]:
    """Yield the cases of all combinations, those that take longest to compile first."""
    modules = {name: _count_modules(name) for name in programs}
    found = [
        Case.parse("/".join((name, mode, precision, order)))
        for name in modules
        for mode in modes
        for precision in precisions
        for order in orders
    ]
    yield from sorted(found, key=lambda case: -modules[case.program] * (3 if case.setting.train else 1))


def _count_modules(name: str) -> int:
    with torch.device("meta"):
        return len(list(PROGRAMS[name].build().modules()))
