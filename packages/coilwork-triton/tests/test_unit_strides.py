"""Shares of bytes at unit stride, which the generator finds in a kernel by itself."""

from __future__ import annotations

import pytest

from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.target import TARGETS
from coilwork_triton import TritonCodegen
from coilwork_triton.facts.memory_traffic import find_transposed_ranges, share_unit_strides
from coilwork_triton.kernel_passes.table import KERNEL_PASSES, begin_draft

H200 = TARGETS["sm_90"]
UNKNOWN = 1024


def shares(
    ranges: str, args: str, body: str, likely: tuple[int, ...] = (), sizes: str = ""
) -> tuple[float, ...]:
    """Those of a kernel with these lines."""
    kernel = parse_kernel(f"kernel @k fast {{\n{sizes}\n{ranges}\n{args}\nbody {{\n{body}\n}}\n}}\n")
    known = dict(zip(kernel.sizes, likely, strict=False))
    return tuple(share_unit_strides(kernel, known, unknown=UNKNOWN).values())


def test_a_transposed_operand_has_its_neighbours_along_the_other_range() -> None:
    found = shares(
        "range y0: `8` parallel\nrange x0: `6` parallel",
        "arg in0: f32 in span `48`\narg in1: f32 in span `48`\narg out0: f32 out span `48`",
        "t0 = load %in0[6*y0 + x0] : f32\nt1 = load %in1[y0 + 8*x0] : f32\nt2 = add(t0, t1)\n"
        "store %out0[6*y0 + x0] = t2",
    )
    assert found == pytest.approx((1 / 3, 2 / 3), abs=1e-5)


def test_a_sum_over_rows_reads_neighbours_along_columns() -> None:
    found = shares(
        "range x0: `6` parallel\nrange r0: `8` reduction",
        "arg in0: f32 in span `48`\narg out0: f32 out span `6`",
        "t0 = load %in0[x0 + 6*r0] : f32\nt1 = reduce sum 0 (t0) over (r0)\nstore %out0[x0] = t1",
    )
    assert found == (1.0, 0.0)


def test_a_window_has_its_place_and_its_elements_side_by_side() -> None:
    found = shares(
        "range x0: `3` parallel\nrange x1: `8` parallel",
        "arg in0: f32 in span `10`\narg out0: f32 out span `24`",
        "t0 = load %in0[x0 + x1] : f32\nstore %out0[8*x0 + x1] = t0",
    )
    assert found == (0.5, 1.0)


def test_what_is_looked_up_counts_with_all_places_that_it_is_looked_up_for() -> None:
    found = shares(
        "range x0: `64` parallel\nrange x1: `4` parallel",
        "arg in0: i64 in span `64`\narg in1: f32 in span `4000`\narg out0: f32 out span `256`",
        (
            "t0 = load %in0[x0] : i64\nt1 = load %in1[@0 + 1000*x1] using (t0) : f32\nstore %out0[4*x0 + "
            "x1] = t1"
        ),
    )
    # 64 positions of 8 bytes, 256 elements from anywhere, and 256 that are stored
    assert found == pytest.approx((512 / 2560, 1024 / 2560), abs=1e-5)


@pytest.mark.parametrize(("likely", "rows"), [((16,), 16), ((), UNKNOWN)])
def test_open_sizes_count_as_what_they_likely_are(likely: tuple[int, ...], rows: int) -> None:
    found = shares(
        "range x0: `n0` parallel\nrange r0: `64` reduction",
        "arg in0: f32 in span `64*n0`\narg out0: f32 out span `n0`",
        "t0 = load %in0[64*x0 + r0] : f32\nt1 = reduce sum 0 (t0) over (r0)\nstore %out0[x0] = t1",
        likely,
        "size n0 in [2, inf]",
    )
    everything = rows * 64 + rows
    assert found == pytest.approx((rows / everything, 64 * rows / everything), abs=1e-5)


def test_points_in_steps_keep_the_shares_of_single_points() -> None:
    kernel = parse_kernel(
        "kernel @k fast {\nrange x0: `64` parallel\nrange x1: `256` parallel\n"
        "arg in0: f32 in span `8192` aligned\narg out0: f32 out span `16384` aligned\nbody {\n"
        "t0 = load %in0[128*x0 + x1 // 2] : f32\nstore %out0[256*x0 + x1] = t0\n}\n}\n"
    )
    draft = KERNEL_PASSES.run(begin_draft(kernel), H200)
    assert draft.coarsening > 1 and draft.unit_strides == begin_draft(kernel).unit_strides


def test_a_single_column_that_neighbours_run_along_has_blocks_of_one_point() -> None:
    kernel = parse_kernel(
        "kernel @k fast {\nrange x0: `1` parallel\nrange r0: `1` reduction\n"
        "arg in0: bf16 in span `2`\narg out0: f32 out span `1`\nbody {\n"
        "t0 = load %in0[x0 + r0] : bf16\nt1 = cast(t0) : f32\nt2 = exp(t1)\n"
        "t3 = reduce welford 0 (t2) over (r0)\nstore %out0[x0] = t3\n}\n}\n"
    )
    for config in TritonCodegen().emit(kernel, H200, {}).configs:
        assert min(dict(config.meta).values()) >= 1 and config.num_warps >= 1


def tiles_of(ranges: str, args: str, body: str) -> dict[str, list[str]]:
    """The ranges of each tile, by strides alone."""
    kernel = parse_kernel(f"kernel @k fast {{\n{ranges}\n{args}\nbody {{\n{body}\n}}\n}}\n")
    return {
        letter: [one.symbol.name for one in group]
        for letter, group in begin_draft(kernel).group_ranges().items()
    }


TURNED_ARGS = "arg in0: f32 in span `96`\narg in1: f32 in span `96`\narg out0: f32 out span `96`"


@pytest.mark.parametrize(
    ("index", "tiles"),
    [
        # as the result: one line of points
        ("48*a + 6*b + c", {"x": ["a", "b", "c"]}),
        # neighbours along b are two-dimensional blocks with those along c, row by row of a
        ("48*a + b + 8*c", {"y": ["a", "b"], "x": ["c"]}),
        # neighbours along a are not next to the innermost range: schedulers put them there
        ("a + 12*b + 2*c", {"x": ["a", "b", "c"]}),
    ],
)
def test_a_turned_operand_has_blocks_of_both_ranges(index: str, tiles: dict[str, list[str]]) -> None:
    found = tiles_of(
        "range a: `2` parallel\nrange b: `8` parallel\nrange c: `6` parallel",
        TURNED_ARGS,
        f"t0 = load %in0[48*a + 6*b + c] : f32\nt1 = load %in1[{index}] : f32\nt2 = add(t0, t1)\n"
        "store %out0[48*a + 6*b + c] = t2",
    )
    assert found == tiles


def test_two_turned_operands_have_blocks_of_three_ranges() -> None:
    found = tiles_of(
        "range a: `2` parallel\nrange b: `8` parallel\nrange c: `6` parallel",
        TURNED_ARGS,
        "t0 = load %in0[a + 2*b + 16*c] : f32\nt1 = load %in1[48*a + b + 8*c] : f32\nt2 = add(t0, t1)\n"
        "store %out0[48*a + 6*b + c] = t2",
    )
    assert found == {"z": ["a"], "y": ["b"], "x": ["c"]}


def test_rows_that_are_reduced_share_a_tile_whatever_is_turned() -> None:
    found = tiles_of(
        "range a: `2` parallel\nrange b: `8` parallel\nrange r0: `6` reduction",
        "arg in0: f32 in span `96`\narg out0: f32 out span `16`",
        "t0 = load %in0[48*a + b + 8*r0] : f32\nt1 = reduce sum 0 (t0) over (r0)\nstore %out0[8*a + b] = t1",
    )
    assert found == {"x": ["a", "b"], "r": ["r0"]}


def test_a_little_that_is_turned_has_no_blocks() -> None:
    """Of 11 operands along the innermost range, and one that is not."""
    loads = "\n".join(f"t{k} = load %in{k}[8*b + c] : f32" for k in range(11))
    sums = "\n".join(f"t{12 + k} = add(t{11 + k if k else 11}, t{k})" for k in range(11))
    args = "\n".join(f"arg in{k}: f32 in span `64`" for k in range(12))
    found = tiles_of(
        "range b: `8` parallel\nrange c: `8` parallel",
        f"{args}\narg out0: f32 out span `64`",
        f"{loads}\nt11 = load %in11[b + 8*c] : f32\n{sums}\nstore %out0[8*b + c] = t22",
    )
    assert found == {"x": ["b", "c"]}


def test_channels_that_share_a_range_with_images_are_neighbours() -> None:
    found = shares(
        "range x0: `128` parallel\nrange r0: `4096` reduction",
        "arg in0: bf16 in span `524288`\narg out0: f32 out span `128`",
        "t0 = load %in0[131072*(x0 // 32) + x0 % 32 + 32*r0] : bf16\nt1 = cast(t0) : f32\n"
        "t2 = reduce sum 0 (t1) over (r0)\nstore %out0[x0] = t2",
    )
    assert found == (1.0, 0.0)


def test_elements_of_a_window_count_once_beside_what_is_stored_across() -> None:
    """Else nine loads would hide that each store is alone on its line of memory."""
    taps = [f"t{k} = load %in0[4096*y0 + 64*x1 + x2 + {64 * (k // 3) + k % 3}] : f32" for k in range(9)]
    sums = [f"t{9 + k} = add(t{8 + k if k else 0}, t{k + 1})" for k in range(8)]
    kernel = parse_kernel(
        "kernel @k fast {\nrange x1: `62` parallel\nrange y0: `96` parallel\nrange x2: `62` parallel\n"
        "arg in0: f32 in span `393216`\narg out0: f32 out span `369024`\nbody {\n"
        + "\n".join((*taps, *sums, "store %out0[5952*x1 + 96*x2 + y0] = t16"))
        + "\n}\n}\n"
    )
    assert find_transposed_ranges(kernel, {}, unknown=UNKNOWN) == ("y0",)
