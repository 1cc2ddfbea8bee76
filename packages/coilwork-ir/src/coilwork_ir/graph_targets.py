"""The targets of a graph of loops, by the devices that it mentions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coilwork_ir.backend import Codegen
from coilwork_ir.buffers import Buffer
from coilwork_ir.loops.access import defined
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.target import Target, Targets


def describe_targets(
    graph: Graph, describe: Callable[[str], Target], find: Callable[[Target], Codegen]
) -> Targets:
    """The targets for the devices that `graph` mentions; a GPU, where there is one, is the main target.

    `describe` gives the target of a device, and `find` the generator of its kernels.
    """
    devices: dict[str, None] = {}
    for entry in graph.inputs:
        if isinstance(entry, Buffer):
            devices.setdefault(entry.device)
    for node in graph.nodes:
        for buffer in defined(node):
            devices.setdefault(buffer.device)
    found = tuple((device, describe(device)) for device in devices)
    gpus = [target for _, target in found if target.is_gpu]
    main = gpus[0] if gpus else (found[0][1] if found else describe("cpu"))
    return declare_capabilities(Targets(main=main, by_device=found), find)


def declare_capabilities(targets: Targets, find: Callable[[Target], Codegen]) -> Targets:
    """`targets` with what the generators of their kernels, which `find` gives, can do."""
    known = {target.name: target for target in (targets.main, *(target for _, target in targets.by_device))}
    found = ((name, find(target).capabilities(target)) for name, target in known.items())
    return replace(targets, declared=tuple(found))
