"""The models that Coilwork is tested and measured on. `CASES` is the registry; one file per family."""

from __future__ import annotations

from benchmarks.models import (
    bert,
    convnext,
    efficientnet,
    gpt2,
    llama,
    lstm,
    mamba,
    mixtral,
    resnet50,
    t5,
    unet,
    vit,
    whisper,
)
from benchmarks.models.case import Instance, ModelCase, Setting, Size, first_rows, instantiate
from benchmarks.models.library import library_case

CASES: tuple[ModelCase, ...] = (
    *gpt2.CASES,
    *bert.CASES,
    *llama.CASES,
    *vit.CASES,
    *t5.CASES,
    *resnet50.CASES,
    *convnext.CASES,
    *efficientnet.CASES,
    *lstm.CASES,
    *unet.CASES,
    *whisper.CASES,
    *mixtral.CASES,
    *mamba.CASES,
)


def find_case(name: str) -> ModelCase:
    """The case called `name`, the suite's or a library's (`torchvision.swin_t`); ValueError names the known
    ones.
    """
    for case in CASES:
        if case.name == name:
            return case
    if "." in name:
        return library_case(name)
    raise ValueError(f"no model called {name!r}; known: {', '.join(case.name for case in CASES)}")


__all__ = ["CASES", "Instance", "ModelCase", "Setting", "Size", "find_case", "first_rows", "instantiate"]
