"""Use coilwork-aot and the runtime by themselves: run a package where there is no compiler of any kind."""

from __future__ import annotations

import importlib.util
import os
import shutil

os.environ["PATH"] = ""  # not even a C++ compiler

import torch

from coilwork_aot import InputError, PackageError, load


def main() -> None:
    print("compiler installed:", importlib.util.find_spec("coilwork_ir") is not None)
    model = load("model.cw")
    print("name:", model.name, "for", *(one.target.name for one in model.manifest.entries["forward"]))

    example = torch.load("example.pt")
    (result,) = model(example["x"])
    print("close to float64:", torch.allclose(result.double(), example["expected"], atol=1e-6))

    try:
        model(torch.randn(8, 15))
    except InputError as error:
        print(error)

    shutil.copy("model.cw", "damaged.cw")
    with open("damaged.cw", "r+b") as file:
        file.seek(600)
        file.write(b"?")
    try:
        load("damaged.cw")
    except PackageError as error:
        print(error)


main()
