"""Choose among a program's kernels on the GPU that is here, before the program is packaged.

A package has one configuration for each version of a kernel, and whoever loads it times none. Here the
program is run once with all candidates and the example inputs, as `torch.compile` would: its launchers time
what they have, or search where the compiler's options say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from coilwork_aot.packaging import Chosen, CompiledProgram
from coilwork_aot.torch_compat import list_leaves
from coilwork_frontend.errors import ExportError
from coilwork_frontend.exported_program import FlatProgram
from coilwork_runtime import bind_roles
from coilwork_runtime.devices import can_run_on, count_devices, current_device, describe_gpu
from coilwork_runtime.executor.choice import ExecutorOptions, drive
from coilwork_runtime.module_loader import load_kernels


def tune(compiled: CompiledProgram, flat: FlatProgram, program: ExportedProgram) -> Mapping[str, Chosen]:
    """Return the configurations, and their machine code, of the kernels that have been chosen, by name; none
    for a program that has no kernels on a GPU.

    Raises:
        ExportError: the program's GPU is not here, or the example inputs have no values.
        KernelBuildError: a kernel does not build.
    """
    specs = load_kernels(compiled.graph.kernels)
    if not any(spec.is_triton for spec in specs):
        return {}
    _check_device(compiled.target)
    inputs = _list_inputs(flat, program)
    launchers = compiled.builder.build(specs)
    driven = drive(
        compiled.graph,
        launchers=launchers,
        options=ExecutorOptions(executor="python"),
        store=None,
        warn=lambda graph, wanted, reason: None,
    )
    with torch.no_grad():
        bind_roles(driven.call, compiled.roles, {}).call(inputs)
    return {
        name: tuple(launcher.binaries())
        for name, launcher in launchers.items()
        if launcher.binaries is not None
    }


def _check_device(target: str) -> None:
    present = describe_gpu(current_device("cuda")).name if count_devices("cuda") else ""
    if not present or not can_run_on(target, present):
        raise ExportError(
            "cannot-tune",
            f"kernels for {target} cannot be timed here",
            reason=f"this machine has {present or 'no GPU'}",
            remedy="export without tunes=True, or where such a GPU is",
        )


def _list_inputs(flat: FlatProgram, program: ExportedProgram) -> list[Any]:
    """Return the state and the example inputs, on the devices of the flat graph; the caller's stay as they
    are.
    """
    args, kwargs = program.example_inputs or ((), {})
    leaves = list_leaves((args, kwargs))
    values: list[Any] = [one.value for one in flat.state]
    values += [None] * (len(flat.inputs) - len(values))
    for place, leaf in zip(flat.input_leaves, leaves, strict=True):
        if isinstance(place, int):
            values[len(flat.state) + place] = leaf
    return [_move(value, like) for value, like in zip(values, flat.inputs, strict=True)]


def _move(value: Any, like: Any) -> Any:
    if not isinstance(like, torch.Tensor):
        return value
    if not isinstance(value, torch.Tensor) or value.is_meta:
        raise ExportError(
            "cannot-tune",
            "kernels are timed with the example inputs and the state, and some have no values",
            remedy="export without tunes=True, or a model with values",
        )
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=like.device)
    return made.copy_(value.detach())
