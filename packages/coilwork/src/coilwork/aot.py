"""Ahead of time: `export`, `load` and `standalone_compile`, which `coilwork_aot` does with our stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from coilwork.backend import GraphStages, check_settings
from coilwork.caches import open_caches
from coilwork.compile_options import CompileOptions
from coilwork.registries import find_target_backend
from coilwork_aot import exporting
from coilwork_frontend.compile_captured import compile_captured
from coilwork_frontend.exported_program import FlatProgram
from coilwork_frontend.torch_compat.aot_autograd import BoxedCallable
from coilwork_ir.target import TARGETS


class ExportStages(GraphStages):
    """Compiles the ATen graph of an exported program, and hands it to `take`."""

    def __init__(self, options: CompileOptions, take: exporting.Take) -> None:
        super().__init__(options)
        self.take = take

    def compile(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **facts: Any) -> BoxedCallable:
        compiled: BoxedCallable = self.take(super().compile(gm, example_inputs, **facts))
        return compiled


def make_compiler(options: Mapping[str, object] | None = None) -> exporting.Compiler:
    """Return the compiler of exported programs, with `options` as of `torch.compile`."""

    def compile_flat(flat: FlatProgram, target: str, take: exporting.Take) -> None:
        settings = check_settings(None, {**(options or {}), **exporting.SETTINGS, "target": target})
        compile_captured(flat.gm, flat.inputs, lambda: ExportStages(settings, take))

    devices = {name: find_target_backend(one).device_types[0] for name, one in TARGETS.items()}
    return exporting.Compiler(compile=compile_flat, devices=devices)


EXPORTER: Final = exporting.Exporter(
    make_compiler=make_compiler, open_store=lambda: open_caches(check_settings(None, None))
)
export = EXPORTER.export
load = EXPORTER.load
standalone_compile = EXPORTER.standalone_compile
