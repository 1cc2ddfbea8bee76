"""Steps through a space of configurations."""

from __future__ import annotations

from runtime_sample_kernels import rewrite, triton_kernel, version

from coilwork_runtime.triton_kernels.autotune.coordinate_descent import Config, Space

SPACE = Space.from_spec(
    rewrite(
        triton_kernel(),
        configs=({"XBLOCK": 64, "YBLOCK": 1, "num_warps": 1, "num_stages": 1},),
        # named in another order than the kernel's parameters
        versions=(
            version(
                {"num_warps": (1, 2, 4), "YBLOCK": (2, 1), "XBLOCK": (128, 64, 256)},
                ("XBLOCK*YBLOCK", "128*num_warps"),
            ),
        ),
    )
)


def config(x: int, y: int, warps: int) -> Config:
    return {"XBLOCK": x, "YBLOCK": y, "num_warps": warps, "num_stages": 1}


def test_a_step_changes_one_parameter_by_one_value() -> None:
    around = [(c["XBLOCK"], c["YBLOCK"], c["num_warps"]) for c in SPACE.steps(config(128, 1, 2))]
    assert around == [(256, 1, 2), (64, 1, 2), (128, 2, 2), (128, 1, 4), (128, 1, 1)]


def test_limits_and_ends_hold() -> None:
    around = [(c["XBLOCK"], c["YBLOCK"], c["num_warps"]) for c in SPACE.steps(config(256, 2, 4))]
    assert around == [(128, 2, 4), (256, 1, 4)]
    assert all(c["num_stages"] == 1 for c in SPACE.steps(config(64, 1, 1)))


def test_double_steps_keep_what_a_thread_has_or_what_a_block_has_or_go_far() -> None:
    around = [(c["XBLOCK"], c["YBLOCK"], c["num_warps"]) for c in SPACE.double_steps(config(128, 1, 2))]
    assert around == [(256, 1, 4), (64, 1, 1), (128, 2, 4), (64, 2, 2)]
    around = [(c["XBLOCK"], c["YBLOCK"], c["num_warps"]) for c in SPACE.double_steps(config(64, 1, 1))]
    assert around == [(128, 1, 2), (64, 2, 2), (64, 1, 4), (256, 1, 2)]


def test_without_a_space_there_is_nothing_around() -> None:
    for closed in (triton_kernel(), rewrite(triton_kernel(), versions=())):
        assert list(Space.from_spec(closed).steps(config(512, 1, 4))) == []
        assert list(Space.from_spec(closed).double_steps(config(512, 1, 4))) == []


def test_what_is_allowed() -> None:
    assert SPACE.allows(config(256, 2, 4))
    assert not SPACE.allows(config(256, 2, 2))
    assert not SPACE.allows(config(512, 1, 4))
    assert not SPACE.allows({"XBLOCK": 64})
