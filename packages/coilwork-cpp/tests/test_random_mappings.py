"""Any legal mapping of a kernel gives the interpreter's results, and what is illegal is refused by its name.

CI draws a few mappings of the conformance kit's kernels and of random ones; `--random-mappings 500` draws as
many.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from cpp_fixtures import TorchDType
from random_kernels import check_kernel
from random_mappings import MORE, RandomlyMapped

from coilwork_cpp.codegen import plan_kernel, write_planned
from coilwork_cpp.options import CppOptions
from coilwork_cpp.planning.plan import CAPABILITIES
from coilwork_cpp.planning.table import MAPPING_PASSES
from coilwork_cpp.rewrites.table import KERNEL_PASSES, rewrite_launch
from coilwork_ir.conformance import CASES, check_codegen, format_failures, make_random_kernel
from coilwork_ir.errors import EmitError
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.mapping import Vector, Warps, find, format_mapping, parse_mapping, verify_mapping
from coilwork_ir.passes import PassTable
from coilwork_ir.target import Target, get_target

Build = Callable[[KernelSource], Callable[..., int]]


def test_random_mappings_of_the_conformance_kit(
    quick_build: Build, machine: Target, request: pytest.FixtureRequest
) -> None:
    wanted = request.config.getoption("--random-mappings") // 2
    theirs = (" sequential", "combined {")
    # functions do not depend on mappings, and take long to build
    cases = [c for c in (*MORE, *CASES) if not c.labels and not any(words in c.text for words in theirs)]
    codes: Counter[str] = Counter()
    count = 0
    for seed in range(10_000):
        codegen = RandomlyMapped(seed)
        part = cases if wanted >= len(cases) else cases[seed % 3 :: 3]
        results = check_codegen(codegen, machine, _runner(quick_build), cases=part[: max(1, wanted - count)])
        assert not format_failures(results), (format_failures(results), codegen.drawn)
        codes.update(codegen.refused)
        count += len(codegen.drawn)
        if count >= wanted:
            break
    assert codes and all(code.startswith("mapping") for code in codes), codes


def test_random_mappings_of_random_kernels(
    quick_build: Build, machine: Target, torch_dtype: TorchDType, request: pytest.FixtureRequest
) -> None:
    count = request.config.getoption("--random-mappings")
    for seed in range(1000, 1000 + count - count // 2):
        codegen = RandomlyMapped(seed)
        kernel = make_random_kernel(seed)
        options = {"split_elements": (0, 64, 16384)[seed % 3], "batch_invariant": seed % 5 == 0}
        run = quick_build(codegen.emit(kernel, machine, options))
        check_kernel(kernel, run, torch_dtype, seed, note="\n".join(codegen.drawn.values()))


def test_every_directive_is_drawn(machine: Target) -> None:
    """Of 500 mappings each directive that the generator takes is in some, so that results are compared with
    it.
    """
    drawn: Counter[type] = Counter()
    kernels = [(make_random_kernel(1000 + number), number) for number in range(440)]
    kernels += [(parse_kernel(case.text), number) for case in MORE for number in range(30)]
    for kernel, number in kernels:
        codegen = RandomlyMapped(number)
        codegen.emit(kernel, machine, {"split_elements": 64, "batch_invariant": number % 5 == 0})
        for text in codegen.drawn.values():
            drawn.update(
                kind for kind in CAPABILITIES if re.search(rf"^ *{kind.keyword()}\b", text, re.MULTILINE)
            )
    assert not [kind.__name__ for kind in CAPABILITIES if drawn[kind] < 3], drawn


def _runner(build: Build) -> Callable[[KernelSource, Mapping[str, torch.Tensor], Mapping[str, int]], None]:
    def run(source: KernelSource, args: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        given = [a for a in source.args if a.role != "scratch"]
        failed = build(source)(*(sizes[a.name] if a.role == "size" else args[a.name] for a in given))
        if failed:
            raise RuntimeError(source.checks[failed - 1])

    return run


# The table


@pytest.mark.parametrize("table", [KERNEL_PASSES, MAPPING_PASSES])
def test_passes_have_reasons_for_what_they_do_and_where_they_stand(table: PassTable[Any, Any]) -> None:
    assert table.violations() == ()
    assert all(row.why for row in table.passes)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_planned_is_legal_and_its_text_is_written_alike(seed: int) -> None:
    machine = get_target("x86-64-avx512")
    planned = plan_kernel(make_random_kernel(seed), machine, CppOptions(split_elements=64))
    again = []
    for piece, mapping in planned.pieces:
        verify_mapping(piece, mapping)
        assert mapping.is_closed
        again.append(parse_mapping(format_mapping(mapping)))
        assert again[-1] == mapping
    rest = iter(again)
    parsed = replace(
        planned, mappings=tuple(tuple(next(rest) for _ in mappings) for mappings in planned.mappings)
    )
    assert write_planned(parsed, machine) == write_planned(planned, machine)


def test_another_mapping_is_another_text_and_a_foreign_directive_is_refused() -> None:
    machine = get_target("x86-64-avx512")
    planned = plan_kernel(make_random_kernel(4), machine, CppOptions())
    ((mapping, *rest), *phases) = planned.mappings
    nest = mapping.nests[0]
    assert find(nest.directives, Vector) or nest.directives
    foreign = replace(
        mapping, nests=(replace(nest, directives=(*nest.directives, Warps(count=4))), *mapping.nests[1:])
    )
    with pytest.raises(EmitError) as caught:
        write_planned(replace(planned, mappings=((foreign, *rest), *phases)), machine)
    assert caught.value.code == "mapping-warps"
    bare = replace(mapping, nests=(replace(nest, directives=()), *mapping.nests[1:]))
    with pytest.raises(EmitError) as caught:
        write_planned(replace(planned, mappings=((bare, *rest), *phases)), machine)
    assert caught.value.code == "mapping-sequential"


def test_a_launch_has_work() -> None:
    launch = rewrite_launch(make_random_kernel(3), CppOptions(), get_target("x86-64-avx2").machine.loops)
    assert launch.phases and all(launch.phases)
