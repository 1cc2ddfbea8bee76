"""Any legal mapping of a kernel gives the interpreter's results, and what is illegal is refused by its name.

CI draws a few mappings of the conformance kit's kernels and of random ones; `--random-triton-mappings 500`
draws as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from kernel_bench import TritonProcess, compile_source, run_source
from mapping_cases import MORE
from random_triton_mappings import RandomlyMapped

from coilwork_ir.conformance import CASES, Case, check_codegen, format_failures, make_random_case
from coilwork_ir.errors import EmitError, VerifyError
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.mapping import Choose, Limit, Order, Unit, parse_mapping
from coilwork_ir.mapping import Mapping as Directives
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.iteration.refusals import TAKES

H200 = get_target("sm_90")
# What GPUs have no instruction for, and a check that fails, which ends the process.
REFUSED = ("failing-check", "store-add-other-types", "store-extremes-other-types", "store-mul", "sort-wide")
# What has labels are functions, which no mapping changes; of what is combined the body has one.
KIT = [
    case for case in CASES if not case.labels and "combined {" not in case.text and case.name not in REFUSED
]


def case_of(number: int) -> Case:
    """One of the kit's cases, or every third time of those that mappings need beside it; neighbours in the
    kit are alike.
    """
    return MORE[number // 3 % len(MORE)] if number % 3 == 0 else KIT[number * 29 % len(KIT)]


def check(engine: TritonProcess, codegen: RandomlyMapped, case: Case) -> None:
    def run(source: KernelSource, args: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> None:
        tensors = [args[a.name] for a in source.args if a.role != "size"]
        given = [sizes[a.name] for a in source.args if a.role == "size"]
        for mine, changed in zip(tensors, run_source(engine, source, tensors, given), strict=True):
            mine.copy_(changed)

    small = tuple(sizes for sizes in case.sizes if max(sizes.values(), default=0) <= 40)
    case = replace(case, sizes=small or (dict.fromkeys(case.sizes[0], 37),))
    results = check_codegen(codegen, H200, run, cases=(case,))
    assert not format_failures(results), (format_failures(results), codegen.seed, codegen.drawn)
    assert not [r for r in results if r.status == "refused"], results


def test_random_mappings_of_the_conformance_kit(
    engine: TritonProcess, request: pytest.FixtureRequest
) -> None:
    wanted = request.config.getoption("--random-triton-mappings") // 2
    codes: Counter[str] = Counter()
    for number in range(wanted):
        codegen = RandomlyMapped(number)
        check(engine, codegen, case_of(number))
        codes.update(codegen.refused)
    assert codes and all(code.startswith("mapping-") for code in codes), codes


def test_random_mappings_of_random_kernels(engine: TritonProcess, request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("--random-triton-mappings")
    for seed in range(2000, 2000 + count - count // 2):
        check(engine, RandomlyMapped(seed), make_random_case(seed))


def test_every_directive_is_drawn() -> None:
    """Of 500 mappings each directive that the generator takes is in some, so that results are compared with
    it.
    """
    drawn: Counter[type] = Counter()
    cases = [case_of(number) for number in range(250)] + [
        make_random_case(seed) for seed in range(2000, 2250)
    ]
    for number, case in enumerate(cases):
        codegen = RandomlyMapped(number if number < 250 else 1750 + number)
        codegen.emit(parse_kernel(case.text), H200, {})
        for text in codegen.drawn.values():
            drawn.update({type(one) for one in parse_mapping(text).directives})
    taken = {*TAKES, Unit, Order} - {Limit, Choose}
    assert not [kind.__name__ for kind in taken if drawn[kind] < 3], drawn


SUMS = """kernel @sums fast {
  range x0: `40` parallel
  range x1: `6` parallel
  range r0: `100` reduction
  arg in0: f32 in span `24000` aligned
  arg out0: f32 out span `240` aligned
  body {
    t0 = load %in0[600*x0 + 100*x1 + r0] : f32
    t1 = reduce sum 0 (t0) over (r0)
    store %out0[6*x0 + x1] = t1
  }
}
"""


@pytest.mark.parametrize(
    ("mapping", "code"),
    [
        ("tile x0 by 4 loop r0 by 32", "tile"),
        ("tile x0, x1 by 3 loop r0 by 32", "tile"),
        ("tile x0, x1 by 4", "loop"),
        ("tile x0, x1 by 4 loop r0 by 48", "loop"),
        ("tile x0, x1 by 4 keep r0 by 64", "keep"),
        ("tile x0, x1 by 4 loop r0 by 32 warps 64", "warps"),
        ("tile x0, x1 by 4 loop r0 by 32 evict in0 last", "evict"),
        ("tile x0, x1 by 4 loop r0 by 32 vector r0 by 4 shifted tail peel", "vector"),
        ("tile x0, x1 by 4 loop r0 by 32 straddle x1 2", "straddle"),
        ("tile x0, x1 by 4 loop r0 by 32 invariant 32 by 32", "invariant"),
        ("tile x0, x1 by 4 loop r0 by 32 coarsen x1 by 1 coarsen x0 by 1", "coarsen"),
        ("tile x0, x1 by 4 loop r0 by 32 select r0 first 4", "select"),
        ("tile x0 by 4 sequential x1 loop r0 by 32", "sequential"),
        ("tile x0, x1 by 4 loop r0 by 32 functions exact", "functions"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(mapping: str, code: str) -> None:
    kernel = parse_kernel(SUMS)
    TritonCodegen().emit_mapping(kernel, parse_mapping("tile x0, x1 by 4 loop r0 by 32"), H200)
    with pytest.raises((EmitError, VerifyError)) as caught:
        TritonCodegen().emit_mapping(kernel, parse_mapping(mapping), H200)
    assert caught.value.code == f"mapping-{code}"


RUNNING = (
    SUMS.replace("reduce sum 0 (t0) over (r0)", "scan sum 0 (t0) along r0")
    .replace("store %out0[6*x0 + x1]", "store %out0[600*x0 + 100*x1 + r0]")
    .replace("out span `240`", "out span `24000`")
)


def test_each_thread_has_a_part_of_what_several_warps_scan() -> None:
    kernel = parse_kernel(RUNNING)
    for mapping in ("tile x0, x1 by 1 loop r0 by 64 warps 2", "tile x0, x1 by 1 loop r0 by 16 warps 1"):
        TritonCodegen().emit_mapping(kernel, parse_mapping(mapping), H200)
    with pytest.raises(EmitError) as caught:
        TritonCodegen().emit_mapping(kernel, parse_mapping("tile x0, x1 by 1 loop r0 by 32 warps 2"), H200)
    assert caught.value.code == "mapping-warps"


TURNED = """kernel @turned fast {
  range x0: `4096` parallel
  range y0: `4096` parallel
  arg in0: f32 in span `16777216` aligned
  arg out0: f32 out span `16777216` aligned
  body {
    t0 = load %in0[4096*y0 + x0] : f32
    store %out0[4096*x0 + y0] = t0
  }
}
"""
LONG_ROWS = """kernel @long_rows fast {
  range x0: `4096` parallel
  range r0: `65536` reduction
  arg in0: f32 in span `268435456` aligned
  arg in1: f32 in span `268435456` aligned
  arg out0: f32 out span `4096` aligned
  body {
    t0 = load %in0[65536*x0 + r0] : f32
    t1 = load %in1[65536*x0 + r0] : f32
    t2 = mul(t0, t1)
    t3 = reduce sum 0 (t2) over (r0)
    store %out0[x0] = t3
  }
}
"""


@pytest.mark.parametrize(
    ("text", "fits", "refused", "code"),
    [
        (LONG_ROWS, "tile x0 by 4 loop r0 by 2048 warps 1", "tile x0 by 4 loop r0 by 4096 warps 1", "loop"),
        (LONG_ROWS, "tile x0 by 64 loop r0 by 128 warps 1", "tile x0 by 256 loop r0 by 64 warps 1", "tile"),
        (TURNED, "tile x0 by 128 tile y0 by 256 warps 8", "tile x0 by 256 tile y0 by 256 warps 8", "tile"),
        (
            LONG_ROWS,
            "tile x0 by 16 loop r0 by 512 stages 3 warps 8",
            "tile x0 by 32 loop r0 by 512 stages 3 warps 8",
            "loop",
        ),
    ],
)
def test_blocks_that_no_program_holds_are_refused(text: str, fits: str, refused: str, code: str) -> None:
    kernel = parse_kernel(text)
    assert TritonCodegen().emit_mapping(kernel, parse_mapping(fits), H200).text
    with pytest.raises(EmitError) as caught:
        TritonCodegen().emit_mapping(kernel, parse_mapping(refused), H200)
    assert caught.value.code == f"mapping-{code}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "mapping"),
    [
        (TURNED, "tile x0 by 128 tile y0 by 256 warps 8"),
        (LONG_ROWS, "tile x0 by 16 loop r0 by 512 stages 3 warps 8"),
        (LONG_ROWS, "tile x0 by 64 loop r0 by 128 warps 1"),
    ],
)
def test_the_largest_blocks_that_are_legal_compile(compiler: TritonProcess, text: str, mapping: str) -> None:
    source = TritonCodegen().emit_mapping(parse_kernel(text), parse_mapping(mapping), H200)
    machine = compile_source(compiler, source, "sm_90")
    # what a kernel has of shared memory is declared by its launch, beyond 48 KiB
    assert ".visible .entry" in machine


def test_a_mapping_without_directives_says_nothing_of_any_range() -> None:
    with pytest.raises(EmitError) as caught:
        TritonCodegen().emit_mapping(parse_kernel(SUMS), Directives(), H200)
    assert caught.value.code == "mapping-tile"
