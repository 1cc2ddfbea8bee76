"""The kernels of a program as source text: which generator writes each, for which device.

An error says whose fault it is. `describe_targets` gives the targets of a graph by the devices that it
mentions, with what their generators can do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coilwork_ir.backend import Codegen, Describing
from coilwork_ir.buffers import Buffer
from coilwork_ir.errors import CoilworkIRError, EmitError
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.nodes import Candidate, Kernel
from coilwork_ir.kernels.text import format_kernel
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.program.nodes import Launch, Program
from coilwork_ir.program.walk import index_buffers, list_kernels, walk
from coilwork_ir.target import Target, Targets

# ---- Kernels ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The targets, generators and settings that kernels are generated with.

    Attributes:
        targets: of the program's devices.
        find: the generator for a target.
        settings: of the generators; a third party's need not know one that nobody asks for.
        likely: by name of a kernel what it is likely called with, one number per size; generators that
            propose versions by size are told.
    """

    targets: Targets
    find: Callable[[Target], Codegen]
    settings: Mapping[str, object] = field(default_factory=dict)
    likely: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def settings_of(
        self, kernel: Kernel, codegen: Codegen, target: Target, candidates: Sequence[Candidate] = ()
    ) -> dict[str, object]:
        """Return the settings of `codegen` for `kernel`, which a template wants to run as `candidates`
        say.
        """
        settings, can = dict(self.settings), codegen.capabilities(target)
        likely = self.likely.get(kernel.name, ())
        if likely and can.versions_by_size:
            settings["likely"] = likely
        if candidates and can.takes_candidates:
            settings["candidates"] = tuple(candidate.directives for candidate in candidates)
        return settings


def emit_kernels(
    program: Program, generation: Generation, *, write: Callable[[str, str], None] | None = None
) -> dict[str, KernelSource]:
    """Source text for every kernel of `program`, by name; each for the device its buffers are on.

    `write` gets the name and the text of files that show each kernel, if anyone wants them.

    Raises:
        EmitError: a generator cannot express a kernel; the error names the kernel's operators.
    """
    sources: dict[str, KernelSource] = {}
    for kernel, codegen, target, settings in _assign_kernels(program, generation):
        source = sources[kernel.name] = _emit(kernel, codegen, target, settings)
        if write is not None:
            write(f"kernels/{kernel.name}.{source.suffix}", source.text)
            write(f"kernels/{kernel.name}.kernel.txt", format_kernel(kernel))
    return sources


def describe_kernels(program: Program, generation: Generation) -> dict[str, str]:
    """Describe by name how each kernel of `program` runs, if its generator says so."""
    return {
        kernel.name: codegen.describe(kernel, target, settings)
        for kernel, codegen, target, settings in _assign_kernels(program, generation)
        if isinstance(codegen, Describing)
    }


def _assign_kernels(
    program: Program, generation: Generation
) -> Iterator[tuple[Kernel, Codegen, Target, dict[str, object]]]:
    """Yield every kernel, with who writes it for what, and the settings for that."""
    devices = _kernel_devices(program)
    proposed = {proposal.kernel: proposal.candidates for part in walk(program) for proposal in part.proposals}
    for kernel in list_kernels(program):
        target = generation.targets.of(devices[kernel.name])
        codegen = generation.find(target)
        candidates = proposed.get(kernel.name, ())
        yield kernel, codegen, target, generation.settings_of(kernel, codegen, target, candidates)


def _emit(kernel: Kernel, codegen: Codegen, target: Target, settings: dict[str, object]) -> KernelSource:
    """Return the kernel's source; an error that does not say whose fault it is names the kernel's
    operators.
    """
    try:
        return codegen.emit(kernel, target, settings)
    except CoilworkIRError as error:
        if error.origins or error.code.startswith("mapping"):
            # a mapping is the user's, who is to hear of it
            raise
        raise EmitError(
            error.code, error.what, node=f"kernel @{kernel.name}", origins=kernel.origins
        ) from error
    # A fault of the generator's is as much about these calls, which the graph can do without kernels for.
    except Exception as error:
        raise EmitError(
            "codegen-failed",
            f"no kernel can be generated: {type(error).__name__}: {error}",
            node=f"kernel @{kernel.name}",
            origins=kernel.origins,
        ) from error


def _kernel_devices(program: Program) -> dict[str, str]:
    """Kernel name -> device of the buffers it is launched on; the CPU for a kernel without any, which checks
    sizes.
    """
    devices: dict[str, str] = {}
    for part in walk(program):
        known = index_buffers(part)
        for instruction in part.instructions:
            if isinstance(instruction, Launch):
                device = known[instruction.args[0]].device if instruction.args else "cpu"
                devices.setdefault(instruction.kernel, device)
    return devices


# ---- Targets of a graph ----


def describe_targets(
    graph: Graph, describe: Callable[[str], Target], find: Callable[[Target], Codegen]
) -> Targets:
    """Return the targets for the devices that `graph` mentions; a GPU, where there is one, is the main
    target.

    `describe` gives the target of a device, and `find` the generator of its kernels.
    """
    devices: dict[str, None] = {}
    for entry in graph.inputs:
        if isinstance(entry, Buffer):
            devices.setdefault(entry.device)
    for node in graph.nodes:
        for buffer in list_defined_buffers(node):
            devices.setdefault(buffer.device)
    by_device = tuple((device, describe(device)) for device in devices)
    gpus = [target for _, target in by_device if target.is_gpu]
    main = gpus[0] if gpus else (by_device[0][1] if by_device else describe("cpu"))
    return declare_capabilities(Targets(main=main, by_device=by_device), find)


def declare_capabilities(targets: Targets, find: Callable[[Target], Codegen]) -> Targets:
    """`targets` with what the generators of their kernels, which `find` gives, can do."""
    known = {target.name: target for target in (targets.main, *(target for _, target in targets.by_device))}
    declared = ((name, find(target).capabilities(target)) for name, target in known.items())
    return replace(targets, declared=tuple(declared))
