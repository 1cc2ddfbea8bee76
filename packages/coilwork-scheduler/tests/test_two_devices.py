"""Graphs whose tensors are on two devices: each kernel is made for its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from declared import schedule
from graph_builder import Builder, Compare

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import Kernel, KernelCall, Schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.program.nodes import AllocPool
from coilwork_ir.program.verify import verify_program
from coilwork_ir.scalar import op
from coilwork_ir.target import Targets, get_target
from coilwork_scheduler.memory import PlanOptions, plan

HOST, GPU = "cpu", "cuda:0"
BOTH = Targets(
    main=get_target("sm_90"), by_device=((HOST, get_target("x86-64-avx2")), (GPU, get_target("sm_90")))
)


def kernels_on(made: Schedule, build: Builder) -> dict[str, list[Kernel]]:
    """The kernels of each device's calls, in order."""
    verify_schedule(made)
    program = plan(made)
    verify_program(program)
    kernels = {kernel.name: kernel for kernel in made.kernels}
    devices = {buffer.name: buffer.device for buffer in (*made.buffers, *build.inputs)}
    found: dict[str, list[Kernel]] = {HOST: [], GPU: []}
    for step in made.steps:
        if isinstance(step, KernelCall):
            (device,) = {devices[name] for name in step.args}
            found[device].append(kernels[step.kernel])
    return found


def halves(build: Builder, device: str, sizes: Sequence[int]) -> list[str]:
    for k, size in enumerate(sizes):
        name = f"{device[:3]}{k}"
        build.input(f"{name}_x", size, device=device)
        build.pointwise(
            f"{name}_y",
            [size],
            lambda i, name=name: op("mul", build.at(f"{name}_x", i), build.at(f"{name}_x", i)),
            device=device,
        )
    return [f"{device[:3]}{k}_y" for k in range(len(sizes))]


def test_launches_are_shared_on_the_gpu_alone(build: Builder, compare: Compare) -> None:
    names = halves(build, HOST, [16, 48, 33]) + halves(build, GPU, [16, 48, 33])
    found = kernels_on(compare(build.graph(*names), name=BOTH), build)
    assert [kernel.combined for kernel in found[HOST]] == [None] * 3
    assert [len(kernel.combined.members) for kernel in found[GPU] if kernel.combined is not None] == [2]


def test_what_two_devices_compute_alike_is_a_kernel_of_each(build: Builder, compare: Compare) -> None:
    names = halves(build, HOST, [40]) + halves(build, GPU, [40])
    found = kernels_on(compare(build.graph(*names), name=BOTH), build)
    assert len({kernel.name for on_one in found.values() for kernel in on_one}) == 2


def test_two_devices_of_one_kind_share_kernels(build: Builder, compare: Compare) -> None:
    alike = Targets(
        main=get_target("sm_90"), by_device=((HOST, get_target("sm_90")), (GPU, get_target("sm_90")))
    )
    names = halves(build, HOST, [40]) + halves(build, GPU, [40])
    assert len(compare(build.graph(*names), name=alike).kernels) == 1


def test_reductions_are_cut_as_their_device_wants(build: Builder, compare: Compare) -> None:
    for device in (HOST, GPU):
        name = device[:3]
        build.input(f"{name}_x", 4, 60, dtype=DType.F32, device=device)
        build.input(f"{name}_long", 100000, dtype=DType.F32, device=device)
        build.reduce(
            f"{name}_rows",
            "sum",
            [4],
            [60],
            lambda i, r, name=name: build.at(f"{name}_x", i, r),
            dtype=DType.F32,
            device=device,
        )
        build.reduce(
            f"{name}_all",
            "sum",
            [],
            [100000],
            lambda r, name=name: build.at(f"{name}_long", r),
            dtype=DType.F32,
            device=device,
        )
    outputs = [f"{device}_{what}" for device in ("cpu", "cud") for what in ("rows", "all")]
    found = kernels_on(compare(build.graph(*outputs), name=BOTH), build)
    # a CPU's kernels cut long rows by themselves
    assert (len(found[HOST]), len(found[GPU])) == (2, 3)


@pytest.mark.parametrize("device", [HOST, GPU])
def test_rows_and_columns_share_a_kernel_where_programs_walk(
    build: Builder, compare: Compare, device: str
) -> None:
    rows, columns = 512, 64
    build.input("x", rows, columns, dtype=DType.F32, device=device)
    build.input("away", 8, device=GPU if device == HOST else HOST)
    build.pointwise(
        "beside",
        [8],
        lambda i: op("add", build.at("away", i), build.at("away", i)),
        device=build.buffers["away"].device,
    )
    build.reduce(
        "along", "sum", [rows], [columns], lambda i, r: build.at("x", i, r), dtype=DType.F32, device=device
    )
    build.reduce(
        "across", "sum", [columns], [rows], lambda i, r: build.at("x", r, i), dtype=DType.F32, device=device
    )
    found = kernels_on(compare(build.graph("along", "across", "beside"), name=BOTH), build)
    sequential = [any(r.kind == "sequential" for r in kernel.ranges) for kernel in found[device]]
    assert any(sequential) == (device == GPU)


def test_a_pool_is_on_one_device(build: Builder) -> None:
    outputs = []
    for device in (HOST, GPU):
        name = device[:3]
        build.input(f"{name}_x", 64, 64, device=device)
        value = f"{name}_x"
        for k in range(9):
            made = build.buffer(f"{name}_{k}", 64, 64, device=device)
            build.extern(
                "aten.mm.default", [value] * 2, [made], out_overload="aten.mm.out", out_names=("out",)
            )
            value = made.name
        outputs.append(value)
    program = plan(schedule(build.graph(*outputs), BOTH), PlanOptions(pools=True, reuse=False))
    verify_program(program)
    pools = [i.device for i in program.instructions if isinstance(i, AllocPool)]
    assert sorted(pools) == [HOST, GPU]
