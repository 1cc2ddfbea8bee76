"""Make a package of one program: of a folder that a wrapper saved, or a trace wrote.

It takes neither the model nor the compiler that made the program: kernels are built from their texts here,
and the inputs are described by the checks that the program begins with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path

import torch

from coilwork_aot.errors import PackageError
from coilwork_aot.manifest import Leaf, Size
from coilwork_aot.model import MAIN
from coilwork_aot.packaging import CompiledProgram, EntryProgram, make_package
from coilwork_aot.trees import Tree
from coilwork_aot.version import __version__
from coilwork_runtime import Builder
from coilwork_runtime.devices import describe_cpu
from coilwork_runtime.dtypes import get_dtype_name
from coilwork_runtime.errors import ProgramBytesError
from coilwork_runtime.executor.choice import Loadable
from coilwork_runtime.executor.program_reader import CONSTANT, Code, Kind, Layout, Part, Tables, read_program
from coilwork_runtime.module_loader import load_kernels
from coilwork_runtime.saved_program import SavedProgram, read_saved_program
from coilwork_runtime.triton_kernels.user_kernels import NAMESPACE


def save_program(
    folder: str | PathLike[str],
    path: str | PathLike[str],
    *,
    constants: Mapping[str, torch.Tensor] | None = None,
    builder: Builder | None = None,
) -> str:
    """Write the program in `folder` as a package to `path`; return the package's digest.

    The loaded model takes the program's inputs, tensors and sizes in one flat list, and returns the tuple of
    its results. It runs with the release of torch that is here.

    Args:
        folder: what `save` of the wrappers `python` and `native` wrote, or the trace of a graph.
        constants: the program's, by key; a trace has none of its own.
        builder: builds the kernels, for the devices that they were generated for.

    Raises:
        PackageError: the folder has no intact program, or one that no package can hold.
        KernelBuildError, MissingCompilerError, MissingTritonError: a kernel does not build.
    """
    try:
        saved = read_saved_program(Path(folder))
        tables, parts = read_program(saved.program)
    except (OSError, ValueError, KeyError, TypeError, ProgramBytesError) as error:
        raise PackageError(
            "damaged-program",
            f"{folder} has no program, or a damaged one",
            reason=f"{type(error).__name__}: {error}"[:500],
            remedy="name a folder that a wrapper saved, or the trace of one graph",
        ) from error
    held = {**saved.constants, **(constants or {})}
    _check_whole(saved.name, tables, held)
    package = make_package(
        name=saved.name,
        entries=[_describe_entry(saved, parts, held, builder or Builder())],
        state={},
        made_by={"coilwork-aot": __version__, "torch": torch.__version__},
        torch_range=_list_releases(torch.__version__),
    )
    package.write(Path(path))
    return package.digest


def _check_whole(name: str, tables: Tables, constants: Mapping[str, torch.Tensor]) -> None:
    """Check that nothing of the program is in another process.

    Raises:
        PackageError: something is.
    """
    for call in tables.calls:
        if call.target.startswith(f"{NAMESPACE}."):
            raise PackageError(
                "user-kernels",
                f"program {name} launches {call.target}, a kernel of the user's",
                reason="the kernel is an object of the process that compiled it",
                remedy="leave the launch out of the graph",
            )
    missing = sorted({*tables.keys} - constants.keys())
    if missing:
        raise PackageError(
            "missing-constant",
            f"program {name} has a constant {missing[0]!r}, of which the folder has no values",
            remedy="hand over constants",
        )


def _describe_entry(
    saved: SavedProgram, parts: Sequence[Part], constants: Mapping[str, torch.Tensor], builder: Builder
) -> EntryProgram:
    specs = load_kernels(saved.kernels)
    inputs = tuple(_describe_inputs(parts[0]))
    results = len(parts[0].steps[-1].operands[0])
    graph = Loadable(
        name=saved.name,
        module="",
        kernels=saved.kernels,
        program=saved.program,
        refusal=saved.refusal,
        constants=constants,
        devices=tuple(sorted({layout.device for part in parts for layout in part.layouts})),
    )
    compiled = CompiledProgram(
        graph=graph,
        roles="takes 0\n",
        builder=builder,
        target=next((spec.target for spec in specs if spec.target), describe_cpu().name),
        rounds_freely=saved.rounds_freely,
    )
    symbols = {size for leaf in inputs for size in leaf.sizes if isinstance(size, str) and size}
    return EntryProgram(
        name=MAIN,
        compiled=compiled,
        inputs=inputs,
        results=tuple(Leaf(kind="tensor", position=number) for number in range(results)),
        in_tree=Tree("tuple", None, (_make_tuple(len(inputs)), Tree("dict", []))),
        out_tree=_make_tuple(results),
        symbols=dict.fromkeys(sorted(symbols), (0, -1)),
        state=(),
    )


def _make_tuple(count: int) -> Tree:
    return Tree("tuple", None, (Tree(),) * count)


def _describe_inputs(part: Part) -> Iterator[Leaf]:
    """Describe the inputs of a program by its checks of them.

    Raises:
        PackageError: it does not check one.
    """
    checks: dict[int, Layout] = {
        step.operands[0]: step.operands[1] for step in part.steps if step.code is Code.CHECK
    }
    # registers that are a size of an input, and no other number
    sizes = {step.operands[0] for step in part.steps if step.code is Code.BIND}
    sizes |= {number for kind, number in part.inputs if kind is Kind.NUMBER}

    def name_size(register: int) -> Size:
        if register & CONSTANT:
            return part.constants[register & ~CONSTANT]
        return f"s{register}" if register in sizes else ""

    for position, (kind, number) in enumerate(part.inputs):
        if kind is not Kind.TENSOR:
            symbol = f"s{number}" if kind is Kind.NUMBER else ""
            yield Leaf(kind="number", name=f"input {position}", position=position, sizes=(symbol,))
            continue
        name = part.slots[number]
        if number not in checks:
            raise PackageError(
                "unchecked-input",
                f"nothing is known of input {name} of program {part.name}",
                reason="the program does not compare its layout",
                remedy="compile it with size_asserts=True; states of random generators cannot be packaged so",
            )
        layout = checks[number]
        yield Leaf(
            kind="tensor",
            name=name,
            position=position,
            dtype=get_dtype_name(layout.dtype),
            device=layout.device.partition(":")[0],
            sizes=tuple(map(name_size, layout.sizes)),
            strides=tuple(
                part.constants[one & ~CONSTANT] if one & CONSTANT else "" for one in layout.strides
            ),
            # who knows: so one with other strides is refused, and not copied
            is_written=True,
        )


def _list_releases(version: str) -> tuple[str, str]:
    """Return the release of torch that is here, and the next one."""
    major, minor = map(int, version.split(".")[:2])
    return f"{major}.{minor}", f"{major}.{minor + 1}"
