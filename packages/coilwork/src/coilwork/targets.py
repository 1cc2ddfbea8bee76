"""The targets that a graph is compiled for, from the devices of its tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

from coilwork.compile_options import CompileOptions
from coilwork.registries import find_codegen, find_device_backend, find_target_backend
from coilwork_frontend.calling_convention.aten_graph import list_devices
from coilwork_ir.emission import describe_targets
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.machine import MachineModel, find_like_model
from coilwork_ir.target import TARGETS, Target, Targets
from coilwork_runtime import DeviceError

# The target of kernels that run in Triton's interpreter.
_INTERPRETED: Final = "sm_90"


def choose_targets(graph: Graph, options: CompileOptions) -> Targets:
    """Return the targets for the devices of `graph`; a GPU, if there is one, is the main target."""
    return describe_targets(graph, lambda device: find_target(device, options), find_codegen)


def find_target(device: str, options: CompileOptions) -> Target:
    """Return the description of `device`, as its back end reads it off, or the target of an export.

    Raises:
        DeviceError: no back end serves it, or the device does not exist.
    """
    wanted = TARGETS.get(options.target)
    if wanted is not None and find_device_backend(device) is find_target_backend(wanted):
        return wanted
    target = find_device_backend(device).describe(device)
    return TARGETS[_INTERPRETED] if options.triton_on_cpu and not target.is_gpu else target


def find_machine_model(device: str) -> MachineModel:
    """Return the measured figures of `device`; for one that does not exist here, those of a similar one."""
    try:
        return find_device_backend(device).describe(device).machine
    except DeviceError:
        return find_like_model(device)


def count_resident_bytes(gm: torch.fx.GraphModule, options: CompileOptions) -> int | None:
    """Return how many bytes stay in the cache of every GPU that `gm` has tensors on; None without a GPU."""
    targets = (find_target(device, options) for device in list_devices(gm))
    return min((target.resident_bytes for target in targets if target.is_gpu), default=None)


def describe_devices(devices: Iterable[str], options: CompileOptions) -> dict[str, str]:
    """Return what graphs for `devices` are compiled for (`key`), and what their code needs to run (`code`).

    Devices of one name differ between machines, and a cache may be shared: code for AVX-512 must not be
    restored on a CPU without it.
    """
    targets = [find_target(device, options) for device in devices]
    return {"key": "\n".join(t.key_text for t in targets), "code": "\n".join(t.code_text for t in targets)}
