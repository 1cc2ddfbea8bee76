"""The benchmark of memory-bound kernels: its cases, its judge, its accounts of bytes, its report, and one run
on a CPU.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.__main__ import main
from benchmarks.backends import family, mode_of
from benchmarks.memory_bound.case import Case, FewestBytes, Make, call_of, fewest_bytes
from benchmarks.memory_bound.cases import CASES, find_case, select
from benchmarks.memory_bound.choices import forget_choices, format_searches, searches
from benchmarks.memory_bound.judge import Judge
from benchmarks.memory_bound.plan import plan_of, sort_rows, table
from benchmarks.memory_bound.report import compute_standing, markdown
from benchmarks.memory_bound.results import Figure, MemoryRun, Row, read_json, to_json
from benchmarks.memory_bound.runner import Plan, measure_cases
from benchmarks.planner import Planner
from coilwork_cache import LocalStore, content_key
from coilwork_ir.program.walk import index_buffers
from coilwork_runtime.generated import KernelVersion, TritonKernel
from coilwork_runtime.triton_kernels.autotune.candidate_selection import select_candidate
from coilwork_runtime.triton_kernels.autotune.coordinate_descent import SearchResult, Trial
from coilwork_runtime.triton_kernels.autotune.records import remember

MAKE = Make(device=torch.device("cpu"))
NAMES = [case.name for case in CASES]


def judge_of(name: str) -> Judge:
    torch.manual_seed(0)
    case = find_case(name)
    return Judge.for_case(case, case.make(MAKE, tiny=True))


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_case_is_right_by_its_own_standards(name: str) -> None:
    judge = judge_of(name)
    verdict = judge.verdict(judge.case.function)
    assert not verdict.wrong
    assert verdict.repeatable is (None if judge.case.random else True)
    fewest = fewest_bytes(judge.case, judge.inputs, judge.expected)
    assert fewest.read > 0 and fewest.written > 0
    assert bool(fewest.again) == bool(judge.case.why)


@pytest.mark.parametrize("name", [case.name for case in CASES if not case.mutates])
def test_wrong_results_are_seen(name: str) -> None:
    judge = judge_of(name)

    def spoiled(*inputs: Tensor) -> object:
        results = judge.case.function(*inputs)
        if isinstance(results, tuple):
            return (moved(results[0]), *results[1:])
        return moved(results)

    assert judge.verdict(spoiled).wrong


def moved(value: Tensor) -> Tensor:
    """Other values of the same type."""
    if value.dtype == torch.bool:
        return ~value
    if value.dtype == torch.float8_e4m3fn:
        return (value.float() * 1.5).clamp(-448, 448).to(value.dtype)
    return value * 3 + 1


def test_fewest_bytes_count_what_is_read_again() -> None:
    case = find_case("layer norm fwd+bwd 16384x4096")
    inputs = case.make(MAKE, tiny=True)
    x, weight, bias = (value.nbytes for value in inputs)
    fewest = fewest_bytes(case, inputs, call_of(case, case.function, inputs)())
    # forward: x, weight and bias to y; backward: the gradient of y, and x again, to three gradients
    assert fewest == FewestBytes(read=x + weight + bias + x, written=x + x + weight + bias, again=x)


def test_rows_that_no_token_names_are_not_counted() -> None:
    case = find_case("embedding fwd 128256x4096, 32768 tokens")
    ids, weight = torch.tensor([3, 3, 1]), torch.zeros(50, 8)
    results = call_of(case, case.function, (ids, weight))()
    fewest = fewest_bytes(case, (ids, weight), results)
    assert fewest == FewestBytes(read=ids.nbytes + 2 * 32, written=3 * 32, again=0)


def test_expanded_results_are_stored_once() -> None:
    case = Case(
        name="", function=lambda x: x.expand(5, 8), inputs=lambda make: (make.normal(8),), size=(), tiny=()
    )
    inputs = case.make(MAKE, tiny=True)
    assert fewest_bytes(case, inputs, call_of(case, case.function, inputs)()).total == 16 + 16


def test_select_by_words_and_sets() -> None:
    assert [case.name for case in select(["ARGMAX"], ["main"])] == ["argmax 8192x32768"]
    assert select([], ["cached"]) == tuple(case for case in CASES if case.set == "cached")


def test_a_fused_kernel_moves_the_fewest_bytes() -> None:
    plan = plan_of(find_case("softmax 4096x8192"), tiny=True)
    (step,) = plan.steps
    assert not plan.failure and not plan.externs
    assert (step.read, step.written) == (plan.fewest.read, plan.fewest.written)
    assert plan.excess == 1.0


def test_a_looped_reduction_reads_its_rows_again() -> None:
    plan = plan_of(find_case("layer norm fwd 2048x32768"))
    (step,) = plan.steps
    assert "looped" in step.walk
    x = 2048 * 32768 * 2
    assert 2 * x <= step.read < 2.1 * x


def test_what_falls_to_aten_comes_first() -> None:
    generated = find_case("SwiGLU 2048x2048 in cache")
    called = replace(generated, name="a product", function=lambda x, y: x @ y.t())
    first, second = sort_rows([plan_of(generated, tiny=True), plan_of(called, tiny=True)])
    assert first.case is called and first.externs and not second.externs
    assert "ATen" in table([first])


def test_plans_are_those_of_a_gpu() -> None:
    planner = Planner(target="sm_90")
    torch._dynamo.reset()
    torch.compile(lambda x: x + torch.arange(8, device=x.device), backend=planner)(torch.zeros(8))
    (program,) = planner.programs
    assert {buffer.device for buffer in index_buffers(program).values()} == {"cuda:0"}


def test_choices_are_forgotten_and_kernels_stay(tmp_path: Path) -> None:
    inductor, store = tmp_path / "inductor" / "ab", LocalStore(tmp_path / "coilwork")
    inductor.mkdir(parents=True)
    (inductor / "kernel.best_config").write_text("{}")
    (inductor / "kernel.py").write_text("")
    trials, kernel = (lambda *_: None, lambda *_: None), content_key("kernel", "binary")
    # the faster one is timed twice
    times = iter((2.0, 1.0, 2.0, 1.0, 1.0, 2.0))

    def choice() -> int:
        key = content_key("tuning", "key")
        mappings = ("warps 4", "warps 8")
        return select_candidate(
            trials, (), (), measure=lambda _: next(times), store=store, key=key, mappings=mappings
        )

    store.put(kernel, b"\x7fELF")
    assert [choice(), choice()] == [1, 1]
    assert forget_choices(inductor=tmp_path / "inductor", coilwork=store.root) == 2
    assert choice() == 0
    assert store.get(kernel) == b"\x7fELF" and (inductor / "kernel.py").exists()


def row(case: str, eager_us: float, own_us: float, failure: str = "") -> Row:
    figures = {
        "eager": Figure(busy_us=eager_us, repeatable=True),
        "coilwork": Figure(busy_us=own_us, failure=failure, repeatable=True, compile_s=2.0),
    }
    return Row(
        case=case,
        set="main",
        read_bytes=100,
        written_bytes=50,
        again_bytes=50,
        why="why",
        copy_us=2.0,
        figures=figures,
    )


@pytest.fixture
def run() -> MemoryRun:
    return MemoryRun(
        command="python -m benchmarks memory",
        when="today",
        device="cpu",
        seconds=3.0,
        machine={"processor": "one"},
        backends=("eager", "coilwork"),
        rows=(row("winner", 4.0, 2.5), row("loser", 4.0, 5.0), row("broken", 4.0, 1.0, "wrong: a | b")),
    )


@pytest.fixture
def wide() -> MemoryRun:
    """A run in which Coilwork searched, too: on one case in vain, on one with a gain, and once it failed."""
    rows = []
    for case, default_us, best_us in (("even", 2.0, 2.0), ("gained", 3.0, 2.0), ("broken", 2.0, None)):
        found = row(case, 4.0, default_us)
        best = Figure(busy_us=best_us, failure="" if best_us else "wrong", repeatable=True)
        figures = found.figures | {"inductor": Figure(busy_us=2.9), "coilwork-max": best}
        rows.append(replace(found, figures=figures | {"inductor-max": Figure(busy_us=2.5)}))
    return MemoryRun(
        command="python -m benchmarks memory",
        when="today",
        device="cpu",
        seconds=3.0,
        machine={},
        backends=("eager", "inductor", "inductor-max", "coilwork", "coilwork-max"),
        rows=tuple(rows),
    )


def test_the_fastest_other_backend_may_have_searched_and_is_of_another_family(wide: MemoryRun) -> None:
    assert [round(compute_standing(row, "coilwork"), 3) for row in wide.rows] == [1.25, 0.833, 1.25]
    text = markdown(wide)
    assert "times as fast as inductor-max (geomean)" in text
    assert "inductor-max / coilwork" in text and "coilwork-max / coilwork" not in text


def test_how_far_defaults_are_from_the_best_found(wide: MemoryRun) -> None:
    text = markdown(wide)
    section = text[text.index("## Default configurations and the best found") :]
    assert "- coilwork is within 3% of coilwork-max, or faster, in 1 of 2 cases" in section
    assert section.index("| gained | 3.00 | 2.00 | +50.0% |") < section.index(
        "| even | 2.00 | 2.00 | +0.0% |"
    )
    assert "broken" not in section
    assert "best found" not in markdown(replace(wide, backends=wide.backends[:-1]))


def test_names_of_backends_with_a_mode() -> None:
    assert [family(n) for n in ("inductor", "inductor-max", "coilwork:reduce-overhead", "eager")] == [
        "inductor",
        "inductor",
        "coilwork",
        "eager",
    ]
    assert mode_of("coilwork-max") == mode_of("inductor-max") == "max-autotune-no-cudagraphs"
    assert mode_of("inductor:reduce-overhead") == "reduce-overhead" and mode_of("coilwork") is None


def test_what_searches_tried_is_read_from_the_cache_and_forgotten(tmp_path: Path) -> None:
    spec = TritonKernel(
        name="k",
        source="",
        entry="k",
        args=(),
        arg_names=(),
        grid=("1",),
        configs=({"XBLOCK": 64}, {"XBLOCK": 32}),
        versions=(KernelVersion(mapping="tile x0 by ?XBLOCK in 64 32 128 256"),),
    )
    first, second, best, broken = (
        Trial(config={"XBLOCK": 64}, milliseconds=0.03, registers=20),
        Trial(config={"XBLOCK": 32}, milliseconds=0.04),
        Trial(config={"XBLOCK": 128}, milliseconds=0.02, registers=30, spill_bytes=8),
        Trial(config={"XBLOCK": 256}, reason="does not build"),
    )
    store = LocalStore(tmp_path / "coilwork")
    found = SearchResult(best=best, proposed=(first, second), tried=(best, broken))
    remember(store, spec, "a GPU", [7], found)
    (entry,) = read = searches(store.root)
    assert (entry["kernel"], entry["device"], entry["sizes"]) == ("k", "a GPU", [7])
    (told,) = json.loads(format_searches([("a case", one) for one in read]))
    assert (told["case"], told["gain"]) == ("a case", 1.5)
    assert told["best"] == {"us": 20.0, "mapping": "tile x0 by 128", "registers": 30, "spill_bytes": 8}
    assert [trial["us"] for trial in told["proposed"]] == [30.0, 40.0]
    assert told["tried"][1]["reason"] == "does not build" and told["tried"][1]["us"] is None
    assert forget_choices(inductor=tmp_path, coilwork=store.root) == 1
    assert searches(store.root) == [] and json.loads(format_searches([])) == []


def test_shares_and_speedups(run: MemoryRun) -> None:
    winner, _, broken = run.rows
    assert winner.fewest_bytes == 200
    assert winner.share("coilwork") == 0.8 and winner.speedup("coilwork", "eager") == 1.6
    assert broken.share("coilwork") is None and broken.share("eager") == 0.5


def test_json_round_trip(run: MemoryRun, tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    path.write_text(to_json(run))
    assert read_json(path) == run


def test_kernels_of_slow_cases_are_listed(run: MemoryRun, tmp_path: Path) -> None:
    steps = (
        ("void at::(anonymous namespace)::fill<int>(int*)", 1.25),
        ("sum_1", 1.0),
        ("sum_1", 2.0),
        ("Memcpy DtoD (Device -> Device)", 0.5),
    )
    rows = [
        replace(row, figures=row.figures | {"coilwork": replace(row.figures["coilwork"], steps=steps)})
        for row in run.rows
    ]
    listed = replace(run, rows=tuple(rows))
    path = tmp_path / "memory.json"
    path.write_text(to_json(listed))
    text = markdown(read_json(path))
    assert "| loser | 40% | fill 1.2, sum_1 1.0 + 2.0, Memcpy DtoD 0.5 |" in text
    # the other one is fast enough, or failed
    assert text.count("sum_1") == 1 and "## Kernels of cases" not in markdown(run)


def test_failures_and_losing_rows_come_first(run: MemoryRun) -> None:
    text = markdown(run)
    assert "| broken | coilwork | wrong: a \\| b |" in text
    assert "- 2 of 3 cases below 0.97 of the fastest other backend, 1 below 75% of a copy" in text
    times = text[text.index("## Memory-bound kernels") :]
    assert times.index("| broken") < times.index("| loser") < times.index("| winner")


def test_a_backend_that_cannot_compile_is_a_row(tmp_path: Path) -> None:
    plan = Plan(
        cases=(find_case("any and all of rows 65536x4096"),),
        backends=("eager", "no_such_backend"),
        device="cpu",
        tiny=True,
        jobs=1,
        timeout_s=120.0,
    )
    (found,) = measure_cases(plan, tmp_path, lambda text: None)
    eager, broken = found.figures["eager"], found.figures["no_such_backend"]
    assert not eager.failure and eager.repeatable and eager.busy_us is not None
    assert found.copy_us is not None and found.fewest_bytes > 0
    assert "no_such_backend" in broken.failure and broken.busy_us is None


def test_the_command_writes_json_and_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["memory", "--device", "cpu", "--tiny", "--jobs", "1", "--backends", "eager"]
    words += [
        "--cases",
        "argmax 8192,cumprod",
        "--out",
        str(tmp_path),
        "--markdown",
        str(tmp_path / "page.md"),
        "--choices",
        str(tmp_path / "choices.json"),
    ]
    assert main(words) == 0
    found = read_json(tmp_path / "memory.json")
    assert [entry.case for entry in found.rows] == ["argmax 8192x32768", "cumprod 8192x8192 f32"]
    assert (tmp_path / "page.md").read_text() == markdown(found)
    assert json.loads((tmp_path / "choices.json").read_text()) == []
    assert "| cumprod 8192x8192 f32 |" in capsys.readouterr().out


def test_the_command_lists_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "--list", "--cases", "ARGMAX", "--sets", "main,more"]) == 0
    assert capsys.readouterr().out.splitlines() == ["argmax 8192x32768", "argmax of columns 8192x16384"]
    assert main(["memory", "--sets", "none"]) == 2
