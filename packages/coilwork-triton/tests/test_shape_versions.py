"""Kernels of open sizes: a version for sizes as they likely are, one for all; both are right where they may
run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
import torch
from kernel_bench import TritonProcess, compile_source, run_source
from torch import Tensor

from coilwork_ir.errors import EmitError
from coilwork_ir.index import find_largest_operands, minimum, symbol
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

SOFTMAX = """kernel @softmax fast {
  size n0 in [0, inf]
  size n1 in [1, inf]
  range x0: `n0` parallel
  range r0: `n1` reduction
  arg in0: f32 in span `n0*n1` aligned
  arg out0: f32 out span `n0*n1` aligned
  body {
    t0 = load %in0[n1*x0 + r0] : f32
    t1 = reduce online_softmax 0 (t0) over (r0)
    t2 = sub(t0, t1)
    t3 = exp(t2)
    t4 = reduce online_softmax 1 (t0) over (r0)
    t5 = div(t3, t4)
    store %out0[n1*x0 + r0] = t5
  }
}
"""
SUMS = """kernel @sums fast {
  size n0 in [0, inf]
  size n1 in [1, inf]
  range x0: `n1` parallel
  range r0: `n0` reduction
  arg in0: f32 in span `n0*n1` aligned
  arg out0: f32 out span `n1` aligned
  body {
    t0 = load %in0[n1*r0 + x0] : f32
    t1 = reduce sum 0 (t0) over (r0)
    store %out0[x0] = t1
  }
}
"""
LEFT = """kernel @left fast {
  size n0 in [2, inf]
  range x0: `n0 % 16` parallel
  range x1: `n0 % 16` parallel
  arg in0: f32 in span `n0 % 16` aligned
  arg out0: f32 out span `(n0 % 16)*(n0 % 16)` aligned
  body {
    t0 = load %in0[x0] : f32
    t1 = load %in0[x1] : f32
    t2 = mul(t0, t1)
    store %out0[(n0 % 16)*x0 + x1] = t2
  }
}
"""
TURNED = """kernel @turned fast {
  size n0 in [0, inf]
  size n1 in [1, inf]
  range y0: `n0` parallel
  range x0: `n1` parallel
  arg in0: f32 in span `n0*n1` aligned
  arg in1: f32 in span `n0*n1` aligned
  arg out0: f32 out span `n0*n1` aligned
  body {
    t0 = load %in0[n1*y0 + x0] : f32
    t1 = load %in1[n0*x0 + y0] : f32
    t2 = add(t0, t1)
    store %out0[n1*y0 + x0] = t2
  }
}
"""
FLAT = """kernel @flat fast {
  size n0 in [0, inf]
  size n1 in [1, inf]
  range x0: `n0*n1` parallel
  arg in0: f32 in span `n0*n1` aligned
  arg out0: f32 out span `n0*n1` aligned
  body {
    t0 = load %in0[x0] : f32
    t1 = exp(t0)
    store %out0[x0] = t1
  }
}
"""
WANTED: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "softmax": (SOFTMAX, lambda x: x.softmax(-1)),
    "sums": (SUMS, lambda x: x.sum(0)),
    "turned": (TURNED, lambda x, y: x + y.reshape(x.shape[1], x.shape[0]).t()),
    "flat": (FLAT, lambda x: x.exp()),
}
LIKELY = {"softmax": (16, 64), "sums": (4096, 64), "turned": (64, 64), "flat": (64, 64)}
SHAPES = ((16, 64), (5, 48), (64, 16), (6, 33), (3, 100), (0, 64), (1, 1), (130, 7))


def kernel_of(name: str) -> Kernel:
    kernel = parse_kernel(WANTED[name][0])
    verify_kernel(kernel)
    return kernel


def emitted(kernel: Kernel, *likely: int, **options: object) -> KernelSource:
    sizes = likely or LIKELY.get(kernel.name, ())
    return TritonCodegen().emit(kernel, get_target("sm_90"), {"likely": sizes, **options})


def version_for(source: KernelSource, sizes: Sequence[int]) -> int:
    """The number of the first version whose guard holds."""
    known = dict(zip(("n0", "n1"), sizes, strict=True))
    return next(n for n, guard in enumerate(source.guards) if guard is None or guard.holds(known))


def departs(source: KernelSource, sizes: Sequence[int]) -> bool:
    return version_for(source, sizes) != 0


def form_of(source: KernelSource, config: int) -> int:
    return dict(source.configs[config].meta)["VERSION"]


def most_particular(source: KernelSource) -> int:
    return form_of(source, 0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", WANTED)
def test_every_version_is_right_where_it_may_run(
    engine: TritonProcess, name: str, shape: tuple[int, int]
) -> None:
    _, function = WANTED[name]
    kernel = kernel_of(name)
    source = emitted(kernel)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator) for argument in kernel.args if argument.role == "in"]
    wanted = function(*inputs)
    chosen = most_particular(source) - version_for(source, shape)
    allowed = [c for c in range(len(source.configs)) if form_of(source, c) in (chosen, 0)]
    assert allowed
    for config in allowed:
        flat = [x.flatten() for x in inputs]
        *_, got = run_source(engine, source, [*flat, torch.full((wanted.numel(),), 7.0)], shape, config)
        torch.testing.assert_close(got.reshape(wanted.shape), wanted)


def test_likely_sizes_are_whole_vectors_short_rows_and_offsets_of_32_bits() -> None:
    source = emitted(kernel_of("softmax"))
    assert not departs(source, (5, 48)) and not departs(source, (1 << 24, 64))
    assert departs(source, (5, 40)) and departs(source, (5, 80)) and departs(source, (1 << 25, 64))
    assert departs(emitted(kernel_of("turned")), (64, 40)) and departs(emitted(kernel_of("turned")), (40, 64))
    # where rows begin does not matter, but that all of it is whole
    assert not departs(emitted(kernel_of("sums")), (4095, 64))


def test_what_is_divided_fits_32_bits_too() -> None:
    """Nearest neighbours: 50,000 of 50,000 elements are few, but the product that is divided is not."""
    nearest = parse_kernel("""kernel @nearest fast {
  size n0 in [1, inf]
  size n1 in [1, inf]
  range x0: `n0` parallel
  arg in0: f32 in span `n1` aligned
  arg out0: f32 out span `n0` aligned
  body {
    t0 = load %in0[n1*x0 // n0] : f32
    store %out0[x0] = t0
  }
}
""")
    verify_kernel(nearest)
    source = emitted(nearest, 1024, 512)
    assert not departs(source, (1024, 512)) and departs(source, (50_000, 49_984))


def test_positions_that_data_decide_are_not_divided_in_32_bits() -> None:
    assert find_largest_operands([symbol("@0", lo=0) * 3 // symbol("n0", lo=1)]) is None
    n0, n1 = symbol("n0", lo=1), symbol("n1", lo=1)
    x0 = symbol("x0", extent=n0)
    assert find_largest_operands([n1 * x0 + 3]) == () == find_largest_operands([x0 // n1])
    assert find_largest_operands([minimum(5 - 2 * x0, n1)]) == (2 * n0 + 5,)


def test_one_version_is_for_all_sizes_and_comes_last() -> None:
    for name in WANTED:
        source = emitted(kernel_of(name))
        found = [form_of(source, config) for config in range(len(source.configs))]
        assert found == sorted(found, reverse=True) and found[-1] == 0 and len(set(found)) == found[0] + 1
        assert found.count(0) == 1 and len(found) >= 2
        assert len({tuple(n for n, _ in config.meta) for config in source.configs}) == 1


def test_between_them_are_rows_of_no_multiples_and_longer_ones() -> None:
    source = emitted(kernel_of("softmax"))
    told = {(16, 64): 0, (5, 33): 1, (16, 65): 2, (16, 8192): 2, (1 << 25, 64): 3}
    assert {sizes: version_for(source, sizes) for sizes in told} == told
    names = re.findall(r"def softmax_(\w+)\(", source.text)
    assert names == ["likely", "ragged", "short", "any"]
    parts = dict(zip(names, re.split(r"def softmax_\w+\(", source.text)[1:], strict=True))
    assert ["for " in part.split("def ")[0] for part in parts.values()] == [False, False, True, True]
    assert ["n1_by_16" in part.split("def ")[0] for part in parts.values()] == [True, False, False, False]
    assert [name for name, part in parts.items() if "int64" in part.split("def softmax(")[0]] == ["any"]


def test_rows_of_no_multiples_have_few_elements_per_thread() -> None:
    """Each has a mask and an address of its own there, and threads have 8 of them; of a likely row of 4,096
    they have 32 in four accesses.
    """
    source = emitted(kernel_of("softmax"), 4096, 4096)
    warps = {form_of(source, k): c.num_warps for k, c in enumerate(source.configs)}
    assert warps[2] == 16
    ragged = source.text.split("def softmax_ragged(")[1].split("def softmax_short(")[0]
    assert "rshift" not in ragged and "for " not in ragged


def test_longer_rows_of_no_multiples_are_read_in_a_loop() -> None:
    source = emitted(kernel_of("softmax"), 4096, 8192)
    assert re.findall(r"def softmax_(\w+)\(", source.text) == ["likely", "short", "any"]
    assert {n: version_for(source, (4096, n)) for n in (8192, 8189, 16384)} == {8192: 0, 8189: 1, 16384: 1}


def test_rows_that_stay_are_read_once() -> None:
    text = emitted(kernel_of("softmax")).text
    likely = text.split("def softmax_likely(")[1].split("def softmax_ragged(")[0]
    general = text.split("def softmax_any(")[1]
    assert "for " not in likely and likely.count("tl.load(") == 1 and "int64" not in likely
    assert general.split("def softmax(")[0].count("tl.load(") == 2


@pytest.mark.parametrize("name", WANTED)
def test_accesses_are_16_bytes_wide(compiler: TritonProcess, name: str) -> None:
    source = emitted(kernel_of(name), 4096, 4096)
    last = len(source.configs) - 1
    wide = [".v4" in compile_source(compiler, source, "sm_90", config) for config in (0, last)]
    # rows that begin anywhere are, too, but not columns
    assert wide == [True, name in ("softmax", "flat")]


def test_sizes_that_are_likely_odd_have_no_multiples() -> None:
    source = emitted(kernel_of("softmax"), 16, 63)
    assert not departs(source, (5, 33)) and departs(source, (5, 65)) and "n1_by_16" not in source.text


@pytest.mark.parametrize("length", [2, 3, 4, 5, 17])
def test_short_rows_may_leave_no_lanes_for_where_they_begin(length: int) -> None:
    """A row of two in a block of two has none, and `n1` is at least 2."""
    source = emitted(kernel_of("softmax"), 16, length)
    assert version_for(source, (16, length)) < most_particular(source)


def test_sizes_of_which_nothing_is_left_if_they_are_multiples_have_no_version() -> None:
    """Of multiples of 64, `n0 % 64` is 0: a version for them would have no element."""
    kernel = parse_kernel(LEFT)
    verify_kernel(kernel)
    source = emitted(kernel, 64)
    assert source.guards == (None,) and "VERSION" not in source.text
    assert "VERSION" in emitted(kernel, 72).text


def test_one_version_does_where_nothing_is_likely() -> None:
    for options in ({"likely": ()}, {"likely": (0, 0)}, {"batch_invariant": True}):
        source = emitted(kernel_of("softmax"), **options)
        assert source.guards == (None,) and "VERSION" not in source.text


def test_what_is_likely_is_not_what_a_kernel_means() -> None:
    kernel = kernel_of("softmax")
    first, second = emitted(kernel, 16, 64), emitted(kernel, 4096, 8192)
    assert first.versions != second.versions
    # the kernel that stands above each text is one
    told = [[line for line in one.text.splitlines() if line.startswith("#")] for one in (first, second)]
    assert told[0] == told[1] and not any("likely" in line for line in told[0])


@pytest.mark.parametrize("value", [(16,), (16, 64, 1), 16, "16", (16, -1), (True, 64), (16.0, 64)])
def test_what_is_likely_is_one_number_for_each_size(value: object) -> None:
    with pytest.raises(EmitError) as caught:
        emitted(kernel_of("softmax"), likely=value)
    assert caught.value.code == "option-value"


@pytest.mark.parametrize("name", ["sm_90", "gfx942"])
@pytest.mark.parametrize("length", [4093, 8191, 16381])
def test_a_program_has_no_more_threads_than_the_device_takes(name: str, length: int) -> None:
    device = get_target(name)
    for config in TritonCodegen().emit(parse_kernel(SOFTMAX), device, {"likely": (16, length)}).configs:
        assert config.num_warps * device.warp_size <= device.max_threads_per_block
