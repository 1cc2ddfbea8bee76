"""Use coilwork-runtime by itself: run a saved artefact where there is no compiler of any kind."""

from __future__ import annotations

import importlib.util
import os
import shutil

os.environ["PATH"] = ""  # not even a C++ compiler

import torch

from coilwork_runtime import ArtifactError, LayoutError, load_artifact


def main() -> None:
    print("compiler installed:", importlib.util.find_spec("coilwork_ir") is not None)
    model = load_artifact("model.coilwork")
    print("name:", model.name, "for", *model.targets)

    example = torch.load("example.pt")
    (result,) = model(example["x"])
    print("close to float64:", torch.allclose(result.double(), example["expected"], atol=1e-6))

    try:
        model(torch.randn(8, 15))
    except LayoutError as error:
        print(error)

    shutil.copy("model.coilwork", "damaged.coilwork")
    with open("damaged.coilwork", "r+b") as file:
        file.seek(600)
        file.write(b"?")
    try:
        load_artifact("damaged.coilwork")
    except ArtifactError as error:
        print(error)


main()
