"""Open sizes count as large as those that a graph was traced with: few long rows and long columns are cut
into pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork.backend import backend
from coilwork.compile_options import CompileOptions
from coilwork.registries import find_codegen
from coilwork.stages import lower_to_program, open_generation
from coilwork_frontend.likely_sizes import (
    describe_likely_sizes,
    list_likely_arguments,
    list_likely_sizes,
    round_size,
)
from coilwork_ir.calling_convention import Boundary
from coilwork_ir.emission import declare_capabilities
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.program.nodes import Program
from coilwork_ir.target import TARGETS, Targets
from coilwork_lowering import LoweringOptions, decompositions, lower
from coilwork_tools.emit_kernels import emit_kernels
from coilwork_tools.explain.report import StageClock
from coilwork_tools.explain.trace_folder import Trace

PLAIN = CompileOptions()


def traced(function: Callable[..., Any], *inputs: Tensor) -> torch.fx.GraphModule:
    """The graph of `function` with open sizes. The memory of `inputs` is not touched."""
    graph: torch.fx.GraphModule = make_fx(
        function, tracing_mode="symbolic", decomposition_table=decompositions(LoweringOptions())
    )(*inputs)
    return graph


def planned(
    gm: torch.fx.GraphModule,
    *,
    likely: bool = True,
    target: str = "sm_90",
    options: CompileOptions = PLAIN,
) -> Program:
    lowered = lower(gm, name="g")
    return lower_to_program(
        lowered.graph,
        declare_capabilities(Targets(main=TARGETS[target]), find_codegen),
        options,
        trace=Trace(None),
        clock=StageClock(),
        boundary=Boundary(likely=list_likely_sizes(lowered.symbols, gm) if likely else ()),
    )


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (-1, -1),
        (0, 0),
        (1, 1),
        (2, 2),
        (3, 3),
        (5, 7),
        (6, 6),
        (16, 16),
        (17, 31),
        (56, 56),
        (1000, 1016),
        (31, 31),
        (32, 32),
        (48, 64),
        (4096, 4096),
        (5008, 8192),
        (50257, 65535),
    ],
)
def test_sizes_are_rounded_up_and_stay_as_odd(size: int, expected: int) -> None:
    assert round_size(size) == expected


def test_symbols_have_the_sizes_that_they_were_traced_with() -> None:
    gm = traced(lambda x: x * 2, torch.empty(1000, 60))
    lowered = lower(gm, name="g")
    shape = [str(size) for size in lowered.graph.inputs[0].shape]
    assert dict(list_likely_sizes(lowered.symbols, gm)) == dict(zip(shape, (1016, 60), strict=True))


def test_sizes_from_data_are_not_guessed() -> None:
    def positive(x: Tensor) -> Tensor:
        return x[x > 0] * 2

    gm = traced(positive, torch.ones(1000))
    lowered = lower(gm, name="g")
    assert [value for _, value in list_likely_sizes(lowered.symbols, gm)] == [1016]
    assert len(describe_likely_sizes(node.meta.get("val") for node in gm.graph.nodes)) == 1


SUMS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "all": (lambda x: x.sum(), (1 << 24,)),
    "columns": (lambda x: x.sum(0), (16384, 4096)),
    "few long rows": (lambda x: torch.softmax(x, -1), (64, 262144)),
    "channels": (lambda x: x.sum((0, 2)), (256, 64, 3136)),
}


@pytest.mark.parametrize("name", SUMS)
def test_long_sums_are_cut_in_pieces(name: str) -> None:
    function, shape = SUMS[name]
    gm = traced(function, torch.empty(shape, device="meta"))
    assert len(planned(gm).kernels) > len(planned(gm, likely=False).kernels) == 1


@pytest.mark.parametrize("name", SUMS)
def test_short_ones_are_not(name: str) -> None:
    function, shape = SUMS[name]
    small = tuple(min(size, 20) for size in shape)
    assert len(planned(traced(function, torch.empty(small, device="meta"))).kernels) == 1


def test_calls_of_other_sizes_give_the_same() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x.softmax(-1), x.sum(0)), backend=backend, dynamic=True)
    for shape in ((2000, 300), (2, 7), (3, 100000), (5000, 2)):
        x = torch.randn(shape)
        for found, expected in zip(compiled(x), (x.softmax(-1), x.sum(0)), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def kernels_of(program: Program, gm: torch.fx.GraphModule, target: str) -> tuple[KernelSource, ...]:
    """What is emitted for `program`, made of `gm`."""
    targets = declare_capabilities(Targets(main=TARGETS[target]), find_codegen)
    likely, options = list_likely_sizes(lower(gm, name="g").symbols, gm), CompileOptions()
    generation = open_generation(program, targets, options, likely)
    return tuple(emit_kernels(program, generation, Trace(None)).values())


def test_equal_kernels_that_are_likely_called_with_other_sizes_are_equal() -> None:
    graphs = [traced(lambda x: x * 2, torch.empty(n, n, device="meta")) for n in (64, 4096)]
    programs = [planned(gm) for gm in graphs]
    assert programs[0].kernels == programs[1].kernels
    # how they run is not
    sources = [kernels_of(program, gm, "sm_90") for program, gm in zip(programs, graphs, strict=True)]
    assert [len(source.guards) > 1 for (source,) in sources] == [True, True]
    assert sources[0][0].versions != sources[1][0].versions


def test_generators_without_versions_are_not_told() -> None:
    gm = traced(lambda x: (x * 2).sum(-1), torch.empty(64, 64))
    (source,) = kernels_of(planned(gm, target="x86-64-avx2"), gm, "x86-64-avx2")
    assert source.language == "cpp"


def test_the_first_call_of_a_kernel_says_what_is_likely() -> None:
    gm = traced(lambda x, y: (x * 2, y * 2), torch.empty(64), torch.empty(2000))
    program = planned(gm, options=CompileOptions(combine=False, fusion=False))
    known = list_likely_sizes(lower(gm, name="g").symbols, gm)
    (kernel,) = program.kernels
    assert list_likely_arguments(program, known) == {kernel.name: (64,)}
    assert list_likely_arguments(program, ()) == {}
