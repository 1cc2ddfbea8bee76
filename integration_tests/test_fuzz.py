"""The fuzzer itself, and up to 200 of its programs. More: `nox -s fuzz`."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from coilwork import stages
from coilwork_cache import MemoryStore
from integration_tests.fuzz import __main__ as command
from integration_tests.fuzz import levels
from integration_tests.fuzz.apart import Apart, InVectors
from integration_tests.fuzz.check import (
    SPREAD_RUNS,
    Expected,
    Finding,
    Ran,
    _compare,
    _differs_in_torch,
    _expected,
    _promised,
    check,
    run,
)
from integration_tests.fuzz.draw import Draw
from integration_tests.fuzz.generate import generate
from integration_tests.fuzz.judge import Form, Jitter, difference
from integration_tests.fuzz.program import Program, Step, materialize, plain, widened
from integration_tests.fuzz.script import script
from integration_tests.fuzz.shrink import shrink
from integration_tests.fuzz.ties import StableSorts

PROGRAMS, LIMIT_S = 200, 90.0


def test_random_programs_agree_at_every_level() -> None:
    """Ends after the limit with as many as were done; a slow machine checks fewer."""
    records = list(command.findings(0, PROGRAMS, seconds=LIMIT_S, limit_s=90, shrinking_s=0))
    failed = [record for record in records if record["kind"] in ("wrong", "raises", "crash", "timeout")]
    assert failed == []
    assert sum(record["kind"] == "ok" for record in records) > len(records) // 2 > 5


def small(*steps: Step, results: tuple[str, ...], **changed: Any) -> Program:
    """A program of one matrix, x0."""
    inputs = (plain("x0", (5, 7), "float32", "grid"),)
    return replace(Program(seed=1, inputs=inputs, steps=steps, results=results), **changed)


SINE = Step(text="v0 = torch.sin(x0)", makes=("v0",), reads=("x0",))
SUM = Step(text="v1 = v0.sum(1)", makes=("v1",), reads=("v0",))
WRITE = Step(text="x0.add_(1)", reads=("x0",), writes=("x0",))


# Programs


def test_a_seed_determines_the_program() -> None:
    assert generate(7) == generate(7) != generate(8)
    first, second = (materialize(generate(7)) for _ in range(2))
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True))


def test_programs_cover_every_operator_family() -> None:
    text = "\n".join(generate(seed).source() for seed in range(150))
    for words in (
        "sum(",
        "cat(",
        "gather(",
        "scatter",
        "sort(",
        "where(",
        ".to(torch.",
        "_(",
        "F.pad(",
        "cumsum(",
    ):
        assert words in text, words


def test_inputs_have_drawn_layouts() -> None:
    value = replace(plain("x0", (3, 4), "int32", "small"), order=(1, 0), steps=(2, 1), offset=5)
    assert value.stride == (2, 6) and value.span == 5 + 1 + 2 * 2 + 3 * 6
    assert replace(value, steps=(0, 1)).stride == (0, 1)
    (made,) = materialize(small(results=("x0",), inputs=(value,)))
    assert made.stride() == (2, 6) and made.storage_offset() == 5 and made.dtype is torch.int32


def test_inputs_may_share_memory() -> None:
    base = plain("x0", (6,), "float32", "grid")
    program = small(results=("x0",), inputs=(base, replace(base, name="x1", offset=3, base="x0")))
    one, other = materialize(program)
    one[3] = 99
    assert other[0] == 99 and other.shape == (6,)


def test_dead_steps_are_dropped_but_not_writes_to_inputs() -> None:
    program = small(SINE, SUM, WRITE, results=("v0",)).live()
    assert program.steps == (SINE, WRITE)


def test_widening_replaces_every_float_by_float64() -> None:
    assert widened("x.to(torch.bfloat16) + y.to(torch.int8)") == "x.to(torch.float64) + y.to(torch.int8)"


def test_resizing_changes_dynamic_sizes() -> None:
    index = plain("x1", (5,), "int64", "index:7")
    program = small(SINE, results=("v0",), sizes=((5, 9), (7, 4)))
    program = replace(program, inputs=(*program.inputs, index)).resized()
    assert [value.shape for value in program.inputs] == [(9, 4), (9,)] and program.inputs[1].fill == "index:4"


def test_resized_inputs_are_not_huge() -> None:
    resized = [generate(seed).resized() for seed in range(30_600, 30_620)]
    assert max(torch.Size(value.shape).numel() for program in resized for value in program.inputs) < 3_000_000


# Judging


def test_tolerance_is_measured_by_jittered_eager_runs() -> None:
    wide = torch.tensor([1.0, 2.0], dtype=torch.float64) / 3
    eager = wide.float()
    assert not difference(eager.clone(), eager, wide, list)
    assert "error" in difference(eager + 1e-3, eager, wide, lambda _: [eager])
    assert not difference(eager + 1e-3, eager, wide, lambda _: [eager + 1e-3])


def test_std_of_equal_numbers_may_be_a_rounding_of_the_mean() -> None:
    x = torch.full((2, 27), 0.13322724401950836)
    eager, wide = x.std(1), x.double().std(1)
    assert eager.eq(0).all()

    def spread(ulps: float) -> list[torch.Tensor]:
        found = []
        for seed in range(SPREAD_RUNS):
            with Jitter(seed, ulps):
                found.append(x.std(1))
        return found

    def of_powers(ulps: float) -> list[torch.Tensor]:
        return [one**3 for one in spread(ulps)]

    for power, runs in ((1, spread), (3, of_powers)):
        assert not difference(torch.full((2,), 1.5e-8**power), eager, wide, runs)
        assert "error" in difference(torch.full((2,), 1.5e-7**power), eager, wide, runs)


@pytest.mark.parametrize(
    "norm",
    [
        lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]),
        lambda x: torch.nn.functional.group_norm(x, 1),
    ],
)
def test_norms_of_equal_numbers_may_be_norms_of_a_rounding(norm: Any) -> None:
    x = torch.full((3, 5), -3.761691093444824)
    eager, wide = norm(x), norm(x.double())
    assert eager.eq(0).all()

    def spread(ulps: float) -> list[torch.Tensor]:
        found = []
        for seed in range(SPREAD_RUNS):
            with Jitter(seed, ulps):
                found.append(norm(x))
        return found

    # the mean is an ulp of 4 off: 2^-22, divided by the root of 1e-5
    assert not difference(torch.full((3, 5), 7.54e-5), eager, wide, spread)
    assert "error" in difference(torch.full((3, 5), 1e-2), eager, wide, spread)


@pytest.mark.parametrize("function", [torch.nn.functional.hardsigmoid, torch.nn.functional.hardswish])
def test_float64_with_a_f32_constant_is_no_reference(function: Any) -> None:
    x = torch.linspace(-2.5, 2.5, 9, dtype=torch.float64)
    short = torch.tensor(1 / 6, dtype=torch.float32).double()
    exact = function(x)
    eager = exact * 6 * short
    coarse = [(f"aten::{function.__name__}", "cpu")]

    def spread(ulps: float, devices: list[tuple[str, str]]) -> list[torch.Tensor]:
        found = []
        for seed in range(SPREAD_RUNS):
            with Jitter(seed, ulps, devices):
                found.append(function(x) * 6 * short)
        return found

    assert not difference(exact, eager, eager, lambda ulps: spread(ulps, coarse))
    assert "error" in difference(exact + 1e-5, eager, eager, lambda ulps: spread(ulps, coarse))
    assert "error" in difference(exact, eager, eager, lambda ulps: spread(ulps, []))


def test_results_of_scalar_eager_loops_are_accepted() -> None:
    """The gradient at NaN is 0 in a vector, and 1 where elements lie apart; nowhere 2."""
    step = Step(text="v0 = F.relu6(x0 + float('nan'))", makes=("v0",), reads=("x0",))
    program = small(step, results=("v0",), gradients=True)
    expected = _expected(program)
    assert expected is not None
    vectors, apart = run(program.function(), program), run(program.function(), program, within=Apart())
    assert not torch.equal(vectors.values[1], apart.values[1])
    assert not _compare(vectors, expected) and not _compare(apart, expected)
    doubled = (*apart.values[:1], 2 * apart.values[1], *apart.values[2:])
    assert "gradient 1" in _compare(replace(apart, values=doubled), expected)


def test_results_of_vectorised_eager_loops_are_accepted() -> None:
    """A single element has no vector in eager; compiled code may treat it as one of many."""
    step = Step(text="v0 = F.hardtanh(x0 + float('nan'))", makes=("v0",), reads=("x0",))
    one = (plain("x0", (1,), "float32", "grid"),)
    program = small(step, results=("v0",), gradients=True, inputs=one)
    expected = _expected(program)
    assert expected is not None
    alone, vectors = run(program.function(), program), run(program.function(), program, within=InVectors())
    assert alone.values[1].item() != vectors.values[1].item() == 0
    assert not _compare(alone, expected) and not _compare(vectors, expected)
    assert "gradient 1" in _compare(
        replace(alone, values=(alone.values[0], alone.values[1] + 1, *alone.values[2:])), expected
    )


@pytest.mark.parametrize("text", ["x0.sum(0)", "x0 @ x0.t()", "F.softmax(x0, 1)", "x0.add_(1)", "x0.t()"])
def test_only_elementwise_steps_run_in_vectors(text: str) -> None:
    program = small(Step(text=f"v0 = {text}", makes=("v0",), reads=("x0",)), results=("v0",))
    found, wanted = run(program.function(), program, within=InVectors()), run(program.function(), program)
    assert torch.equal(found.values[0], wanted.values[0])


def test_means_may_be_off_by_an_ulp_of_the_summands() -> None:
    value = torch.tensor([1024.0, -1024.0, 0.25])
    with Jitter(1):
        _, mean = torch.var_mean(value, 0)
    distance = (mean.double() - 0.25 / 3).abs().item()
    assert 1e-6 < distance < 2e-4
    with Jitter(2):
        _, mean = torch.var_mean(torch.tensor([1e-6, 1024.0, -1024.0]), 0)
    assert mean.item() == 0


@pytest.mark.parametrize(
    "text",
    [
        "x0.sort(0)[0]",
        "x0.sort(0, descending=True)[0]",
        "x0.topk(4, 0)[0]",
        "x0.kthvalue(9, 0)[0]",
        "x0.median(0)[0]",
    ],
)
def test_either_of_equal_elements_may_have_the_gradient(text: str) -> None:
    """Gradients as stable sorts have them are right, where eager's go to others; but not those of other
    elements.
    """
    step = Step(text=f"v0 = {text}", makes=("v0",), reads=("x0",))
    inputs = (plain("x0", (17, 3), "float32", "grid"),)
    program = Program(seed=1, inputs=inputs, steps=(step,), results=("v0",), gradients=True)
    expected = _expected(program)
    assert expected is not None
    stable = run(program.function(), program, within=StableSorts())
    torch.testing.assert_close(stable.values[0], expected.eager.values[0], rtol=0, atol=0, check_stride=True)
    assert not _compare(stable, expected)
    mixed = (stable.values[0], stable.values[1].roll(1, 0), *stable.values[2:])
    assert "gradient 1" in _compare(replace(stable, values=mixed), expected)
    assert torch.equal(expected.otherwise(1, StableSorts)[0], stable.values[1])


def test_sorts_of_equal_elements_are_judged_by_a_stable_sort() -> None:
    x = torch.tensor([0.25, 2, 0, -1, 0, -0.5, -0.75, 2, 0, 1.75, 1, 1.25, 0, -1.75, -1.5, 0.25, -0.75])
    positions = x.sort(stable=True)[1]
    assert not torch.equal(x.sort()[1], positions), "eager's sort is stable, too: this mode is not needed"
    with StableSorts():
        assert torch.equal(x.sort()[1], positions)
        assert torch.equal(x.topk(4)[1], x.sort(descending=True, stable=True)[1][:4])


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        (torch.ones(2, 3, dtype=torch.int32), "dtype"),
        (torch.ones(3, 2, dtype=torch.int64), "shape"),
        (torch.ones(3, 2, dtype=torch.int64).t(), "strides"),
        (torch.tensor([[1, 1, 1], [1, 2, 1]]), "1 of 6 differ, first at (1, 1)"),
    ],
)
def test_integers_dtypes_and_shapes_must_be_equal(ours: torch.Tensor, words: str) -> None:
    eager = torch.ones(2, 3, dtype=torch.int64)
    assert words in difference(ours, eager, eager, list)


def test_strides_of_fake_tensors_are_accepted() -> None:
    eager = torch.ones(2, 3)
    promised = Form(dtype=torch.float32, stride=(1, 2))
    assert not difference(torch.ones(3, 2).t(), eager, eager.double(), list, promised)


def test_slices_of_another_layout_begin_elsewhere() -> None:
    whole, turned = torch.arange(6.0).view(1, 2, 3), torch.arange(6.0).view(1, 2, 3).mT.contiguous().mT
    halves = [
        Ran(values=one.split([1, 2], 2), shared=((0, 1, distance),))
        for one, distance in ((whole, 4), (turned, 8))
    ]
    expected = Expected(program=small(results=("v0", "v1")), eager=halves[0], wide=halves[0], promised=())
    promised = tuple(Form(dtype=v.dtype, stride=v.stride()) for v in halves[1].values)
    assert not _compare(halves[1], replace(expected, promised=promised))
    assert "shared memory" in _compare(replace(halves[0], shared=((0, 1, 8),)), expected)
    assert "shared memory" in _compare(replace(halves[1], shared=()), replace(expected, promised=promised))


def test_jitter_skips_zero_tensors_of_autograd() -> None:
    zeros = torch._efficientzerotensor(3)
    with Jitter(1):
        assert torch.equal(zeros + torch.ones(3), torch.ones(3))


def test_overflow_in_between_depends_on_order() -> None:
    """A product with a zero: it is 0, or NaN where the others were infinite before it came."""
    wide = torch.zeros(3, dtype=torch.float64)
    nan, zero = torch.full((3,), float("nan")), torch.zeros(3)
    overflowed = torch.tensor([0.0, float("nan"), 0.0])
    assert not difference(nan, overflowed, wide, list)
    assert "error inf" in difference(nan, zero, wide, lambda _: [zero])


def test_fake_forms_are_known_beside_data_dependent_sizes() -> None:
    step = Step(text="v1 = x0.flatten().nonzero()", makes=("v1",), reads=("x0",))
    forms = _promised(small(SINE, step, results=("v0", "v1")))
    assert forms[0] is not None and forms[0].dtype == torch.float32
    assert len(forms) == 2


def test_fake_forms_are_unknown_where_fake_tensors_refuse() -> None:
    """They take it that a broadcast value has no more elements to select than it had before."""
    found = Step(text="v0 = x0[:1].masked_select(x0 == x0)", makes=("v0",), reads=("x0",))
    one = Step(text="v1 = v0.select(0, 22)", makes=("v1",), reads=("v0",))
    program = small(found, one, results=("v1",))
    assert _expected(program) is not None and _promised(program) == ()


def test_squeezed_dimensions_kept_by_fake_tensors_are_dropped() -> None:
    step = Step(text="v1 = x0.flatten()[:1].nonzero().flatten().squeeze()", makes=("v1",), reads=("x0",))
    assert check(small(SINE, step, results=("v0", "v1")), store=MemoryStore()).kind == "ok"


@pytest.mark.parametrize(
    ("dtype", "text", "exact"),
    [
        ("float64", "x0 * 0.5", True),
        ("float64", "x0 / 3", False),
        ("float32", "x0 + 0.25", True),
        ("float32", "x0 ** 2", False),
        ("float32", "torch.linalg.vector_norm(x0, 3, 0)", False),
        ("float32", "torch.logical_not(x0)", True),
        ("float32", "torch.var_mean(x0 * 0, 0)[1]", False),
    ],
)
def test_exactness_is_known_per_function(dtype: str, text: str, exact: bool) -> None:
    """A function that no kernel rounds as another does is exact by luck alone."""
    draw = Draw(random.Random(1), 1)
    draw.add_input(plain("x0", (5, 7), dtype, "grid"))
    (made,) = draw.make(text)
    assert draw.exact(made) is exact


# Finding, shrinking, telling


def test_eager_runs_return_gradients() -> None:
    program = small(SINE, SUM, results=("v1",), gradients=True)
    found = run(program.function(), program)
    assert [tuple(value.shape) for value in found.values] == [(5,), (5, 7), (5, 7)]


def test_gradients_may_have_strides_of_fake_tensors() -> None:
    """Of a product in 16 bits with a factor that is expanded; `aot_eager` runs eager's kernel, and lays it
    out as that does.
    """
    program = generate(1000903)
    assert program.gradients and "amax" in program.source()
    assert check(program, store=MemoryStore(), wrappers=()).kind == "ok"


def test_a_broken_kernel_is_found_and_its_level_named(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = stages.emit_kernels

    def broken(*arguments: Any, **keywords: Any) -> Any:
        sources = emit(*arguments, **keywords)
        return {name: replace(s, text=s.text.replace("1.0f", "1.5f")) for name, s in sources.items()}

    program = small(SINE, SUM, WRITE, results=("v0", "v1"))
    assert check(program, store=MemoryStore()) == Finding(seed=1, kind="ok", graphs=1)
    monkeypatch.setattr(stages, "emit_kernels", broken)
    finding = check(program, store=MemoryStore())
    assert (finding.kind, finding.level) == ("wrong", "python")
    assert "input x0 afterwards" in finding.detail


def test_values_in_torch_layouts_are_still_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients, which eager lays out otherwise than what AOTAutograd captures."""
    step = Step(text="v0 = x0.mT * 2", makes=("v0",), reads=("x0",))
    inputs = (plain("x0", (3, 4, 4), "float32", "normal"),)
    program = Program(seed=2, inputs=inputs, steps=(step,), results=("v0",), gradients=True)
    assert check(program, store=MemoryStore(), wrappers=()).kind == "torch"
    interpret = levels.interpret_schedule

    def broken(*arguments: Any) -> Any:
        return tuple(value * 1.5 for value in interpret(*arguments))

    monkeypatch.setattr(levels, "interpret_schedule", broken)
    finding = check(program, store=MemoryStore(), wrappers=())
    assert (finding.kind, finding.level) == ("wrong", "schedule")
    assert "error" in finding.detail


def test_assertions_of_dynamo_on_data_dependent_sizes_are_torch_faults() -> None:
    """Of one element that is chosen: `where` would broadcast it, and the captured graph takes it
    for three.
    """
    text = "v0 = torch.where(x0 == 1, torch.masked_select(x0, x0 == 1), x1)"
    inputs = (plain("x0", (3,), "int64", "permutation"), plain("x1", (3,), "int64", "small"))
    step = Step(text=text, makes=("v0",), reads=("x0", "x1"))
    program = Program(seed=2, inputs=inputs, steps=(step,), results=("v0",), dynamic=True)
    ran = run(program.function(), program)
    expected = Expected(program=program, eager=ran, wide=ran, promised=())
    assert _differs_in_torch(program, [expected])


def test_shrinking_keeps_the_failure() -> None:
    def fails(program: Program) -> bool:
        """Stands for a bug of `cumsum` over more than two elements."""
        if not any("cumsum" in step.text for step in program.steps):
            return False
        try:
            run(program.function(), program)
        except (RuntimeError, IndexError, TypeError, ValueError):
            return False
        return any(n > 2 for value in program.inputs for n in value.shape)

    seed = next(seed for seed in range(500) if fails(generate(seed)) and len(generate(seed).steps) > 6)
    shrunk = shrink(generate(seed), fails, seconds=60)
    assert fails(shrunk)
    assert len(shrunk.steps) == 1 and len(shrunk.inputs) == 1 and shrunk.options == () and not shrunk.dynamic
    assert sum(n > 1 for n in shrunk.inputs[0].shape) == 1 and max(shrunk.inputs[0].shape) == 3


def test_a_script_stands_alone() -> None:
    program = small(SINE, SUM, WRITE, results=("v1",))
    text = script(program, 'result "v1" differs')
    space: dict[str, Any] = {"__name__": "script"}
    exec(compile(text, "script", "exec"), space)
    ours, expected = space["run"](space["program"]), run(program.function(), program).values
    torch.testing.assert_close(ours, list(expected))
    assert "'strict': True" in text and "result 'v1' differs" in text


def test_a_worker_that_dies_costs_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying:
        """Dies at seed 2."""

        def __init__(self, first: int, count: int, shrinking_s: float, device: str) -> None:
            self.seeds = iter(range(first, first + count))

        def answer(self, limit_s: float) -> dict[str, Any] | str:
            seed = next(self.seeds)
            return "died" if seed == 2 else {"seed": seed, "kind": "ok"}

        def stop(self) -> None:
            pass

    monkeypatch.setattr(command, "Worker", Dying)
    kinds = [r["kind"] for r in command.findings(0, 5, seconds=60, limit_s=1, shrinking_s=0)]
    assert kinds == ["ok", "ok", "crash", "ok", "ok"]


def test_operands_that_give_billions_of_elements_are_not_drawn() -> None:
    # a [100, 100, 1, 1] beside a [3, 70001]
    program = generate(31267)
    assert all(math.prod(value.shape) < 10**8 for value in materialize(program))


def test_a_program_that_cannot_be_drawn_is_reported_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command._source(3) == generate(3).source() + "\n"
    monkeypatch.setattr(command, "START_LIMIT_S", 0.01)
    assert command._source(3).startswith("# seed 3 cannot be drawn")
