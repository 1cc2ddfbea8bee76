"""Strides of intermediates: the solver beside brute force, the traffic model, and whole graphs before and
after the pass.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from random import Random

import pytest
import torch
from declared import schedule

from coilwork_ir.buffers import Buffer
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Graph
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.layouts.solve import Term, choose_cheapest, compute_total_cost
from coilwork_scheduler.pipeline import DEFAULT

DEVICES = ("sm_90", "x86-64-avx512")


def random_terms(rng: Random, counts: Sequence[int], scopes: Sequence[tuple[int, ...]]) -> list[Term]:
    terms = []
    for scope in scopes:
        costs = {point: rng.randrange(50) for point in product(*(range(counts[v]) for v in scope))}
        terms.append(Term(scope, costs.__getitem__))
    return terms


def brute_force(counts: Sequence[int], terms: Sequence[Term]) -> int:
    return min(compute_total_cost(terms, point) for point in product(*map(range, counts)))


def random_scopes(rng: Random, count: int) -> list[tuple[int, ...]]:
    wide = [tuple(rng.sample(range(count), rng.randint(1, min(3, count)))) for _ in range(count + 2)]
    return [*wide, *((v,) for v in range(count))]


@pytest.mark.parametrize("seed", range(60))
def test_the_solver_is_exact_where_its_tables_are_large_enough(seed: int) -> None:
    rng = Random(seed)
    counts = [rng.randint(1, 4) for _ in range(rng.randint(1, 6))]
    terms = random_terms(rng, counts, random_scopes(rng, len(counts)))
    choice = choose_cheapest(counts, terms)
    assert compute_total_cost(terms, choice) == brute_force(counts, terms)
    assert choose_cheapest(counts, terms) == choice


@pytest.mark.parametrize("seed", range(20))
def test_terms_of_one_form_are_asked_once_and_change_nothing(seed: int) -> None:
    rng = Random(500 + seed)
    counts = [2, 3] * 6
    costs: dict[str, dict[tuple[int, ...], int]] = {
        form: {p: rng.randrange(50) for p in product(range(2), range(3))} for form in ("a", "b")
    }
    asked: list[tuple[str, tuple[int, ...]]] = []

    def term(form: str, variable: int, *, is_told: bool) -> Term:
        def cost(choice: tuple[int, ...]) -> int:
            # the first variable has two candidates, whichever of the pair it is
            asked.append((form, choice))
            return costs[form][choice]

        return Term((variable, variable + 1), cost, form if is_told else None)

    forms = [rng.choice("ab") for _ in range(6)]
    links = [Term((v, v + 1), lambda p: sum(p) * 7 % 5) for v in range(1, 11, 2)]
    told = choose_cheapest(counts, [*links, *(term(f, 2 * k, is_told=True) for k, f in enumerate(forms))])
    assert len(asked) == len(set(forms)) * 6
    assert told == choose_cheapest(
        counts, [*links, *(term(f, 2 * k, is_told=False) for k, f in enumerate(forms))]
    )


@pytest.mark.parametrize("seed", range(60))
def test_with_small_tables_no_single_change_is_better(seed: int) -> None:
    rng = Random(1000 + seed)
    counts = [rng.randint(1, 4) for _ in range(rng.randint(2, 6))]
    terms = random_terms(rng, counts, random_scopes(rng, len(counts)))
    choice = choose_cheapest(counts, terms, most_entries=4)
    least = compute_total_cost(terms, choice)
    assert least >= brute_force(counts, terms)
    for variable, count in enumerate(counts):
        for candidate in range(count):
            other = [*choice[:variable], candidate, *choice[variable + 1 :]]
            assert compute_total_cost(terms, other) >= least


def test_small_tables_lose_little() -> None:
    lost = 0
    for seed in range(60):
        rng = Random(2000 + seed)
        counts = [rng.randint(2, 3) for _ in range(6)]
        terms = random_terms(rng, counts, random_scopes(rng, len(counts)))
        choice = choose_cheapest(counts, terms, most_entries=9)
        lost += compute_total_cost(terms, choice) > brute_force(counts, terms)
    assert lost <= 6


def test_chains_take_linear_time_and_the_first_of_equal_candidates() -> None:
    calls = 0

    def differ(point: tuple[int, ...]) -> int:
        nonlocal calls
        calls += 1
        return int(point[0] != point[1])

    count = 2000
    terms = [Term((v, v + 1), differ) for v in range(count - 1)]
    assert choose_cheapest([3] * count, terms) == (0,) * count
    assert calls == 9 * (count - 1)
    pulled = [*terms, Term((0,), lambda point: 5 * (point[0] != 2))]
    assert choose_cheapest([3] * count, pulled) == (2,) * count


# A stream that a call hands over transposed, a norm of it, a product that wants the norm row by row, and the
# sum of both.
STREAM = """
graph @stream {
  input %x: f32[2, 480, 400]
  input %p: f32[400, 480]
  input %w: f32[480, 480]
  extern "aten.neg.default" (%x) aten defines (%c: f32[2, 480, 400]) fresh
  %a: f32[2, 400, 480]{192000, 1, 400} = pointwise [i0: 2, i1: 400, i2: 480] {
    t0 = load %c[i0, i2, i1] : f32
    t1 = load %p[i1, i2] : f32
    t2 = add(t0, t1)
    t3 = exp(t2)
    t4 = tanh(t3)
    t5 = exp(t4)
    t6 = tanh(t5)
    yield t6
  }
  (%m: f32[2, 400]) = reduce sum [i0: 2, i1: 400 | r0: 480] {
    t0 = load %a[i0, i1, r0] : f32
    yield t0
  }
  %n: f32[2, 400, 480] = pointwise [i0: 2, i1: 400, i2: 480] {
    t0 = load %a[i0, i1, i2] : f32
    t1 = load %m[i0, i1] : f32
    t2 = sub(t0, t1)
    yield t2
  }
  %n_view: f32[800, 480] = view %n offset `0`
  extern "aten.mm.default" (%n_view, %w) aten implements "product" defines (%y: f32[800, 480]) out \
"aten.mm.out" ("out") fresh
  %b: f32[2, 400, 480]{192000, 1, 400} = pointwise [i0: 2, i1: 400, i2: 480] {
    t0 = load %a[i0, i1, i2] : f32
    t1 = load %y[400*i0 + i1, i2] : f32
    t2 = add(t0, t1)
    t3 = exp(t2)
    t4 = tanh(t3)
    t5 = exp(t4)
    yield t5
  }
  (%s: f32[2, 400]) = reduce sum [i0: 2, i1: 400 | r0: 480] {
    t0 = load %b[i0, i1, r0] : f32
    yield t0
  }
  %o: f32[2, 400, 480] = pointwise [i0: 2, i1: 400, i2: 480] {
    t0 = load %b[i0, i1, i2] : f32
    t1 = load %s[i0, i1] : f32
    t2 = sub(t0, t1)
    yield t2
  }
  return (%o RETURNED) FREE
}
"""


def stream(returned: str = "", free: str = "") -> Graph:
    return parse_graph(STREAM.replace("RETURNED", returned).replace("FREE", free))


def laid_out(graph: Graph, device: str = "sm_90", options: ScheduleOptions = DEFAULT) -> Graph:
    verify_graph(graph)
    found: list[Graph] = []

    def observe(name: str, after: Graph) -> None:
        verify_graph(after)
        if name == "layouts":
            found.append(after)

    made = schedule(graph, get_target(device), options, observe=observe)
    verify_schedule(made)
    torch.manual_seed(0)
    given = [
        (torch.randn([int(e.value) for e in i.shape]) / 4).as_strided(
            [int(e.value) for e in i.shape], [int(s.value) for s in i.strides]
        )
        for i in graph.inputs
        if isinstance(i, Buffer)
    ]
    expected = interpret_graph(graph, given)
    for wanted, result in zip(expected, interpret_schedule(made, given), strict=True):
        assert isinstance(wanted, torch.Tensor) and isinstance(result, torch.Tensor)
        torch.testing.assert_close(result, wanted)
    return found[0]


def strides_in(graph: Graph, name: str) -> str:
    found = re.search(rf"%{name}: \w+\[[^]]*\](\{{[^}}]*\}})?( = |[,)])", format_graph(graph))
    assert found is not None
    return found[1] or "rows"


@pytest.mark.parametrize("device", DEVICES)
def test_a_stream_that_is_normed_lies_along_its_rows(device: str) -> None:
    after = laid_out(stream(), device)
    assert strides_in(after, "b") == "rows"


def test_a_result_keeps_the_strides_that_its_caller_sees() -> None:
    after = laid_out(stream(returned=", %b"))
    assert strides_in(after, "b") == "{192000, 1, 400}"


def test_a_result_that_nobody_sees_is_laid_out_as_well() -> None:
    after = laid_out(stream(returned=", %b", free="free (%b)"))
    assert strides_in(after, "b") == "rows"


# a norm over the channels of planes, and a pool of them whose loop reads nothing that has a layout of its own
POOLED = """graph @pooled {
  input %x: f32[4, 256, 64, 64]{1048576, 1, 16384, 256}
  %b: f32[4, 256, 64, 64] = pointwise [i0: 4, i1: 256, i2: 64, i3: 64] {
    t0 = load %x[i0, i1, i2, i3] : f32
    t1 = exp(t0)
    t2 = tanh(t1)
    t3 = lgamma(t2)
    t4 = tanh(t3)
    t5 = lgamma(t4)
    t6 = exp(t5)
    t7 = lgamma(t6)
    yield t7
  }
  (%s: f32[4, 64, 64]) = reduce sum [i0: 4, i2: 64, i3: 64 | r0: 256] {
    t0 = load %b[i0, r0, i2, i3] : f32
    yield t0
  }
  %o: f32[4, 256, 64, 64]{1048576, 1, 16384, 256} = pointwise [i0: 4, i1: 256, i2: 64, i3: 64] {
    t0 = load %b[i0, i1, i2, i3] : f32
    t1 = load %s[i0, i2, i3] : f32
    t2 = sub(t0, t1)
    yield t2
  }
  %p: f32[4, 256, 32, 32] = pointwise [i0: 4, i1: 256, i2: 32, i3: 32] {
    t0 = load %b[i0, i1, 2*i2, 2*i3] : f32
    t1 = load %b[i0, i1, 2*i2 + 1, 2*i3 + 1] : f32
    t2 = maximum(t0, t1)
    yield t2
  }
  return (%o, %p) free (%p)
}
"""


@pytest.mark.parametrize("device", DEVICES)
def test_memory_that_nobody_has_a_wish_for_follows_its_neighbours(device: str) -> None:
    after = laid_out(parse_graph(POOLED), device)
    assert strides_in(after, "b") == "{1048576, 1, 16384, 256}"
    assert strides_in(after, "p") == "{262144, 1, 8192, 256}"


def test_layouts_do_not_depend_on_the_batch_where_results_may_not() -> None:
    after = laid_out(stream(), options=ScheduleOptions(batch_invariant=True))
    assert strides_in(after, "b") == "{192000, 1, 400}"


def test_choices_are_recorded_with_their_runner_up() -> None:
    made = schedule(stream(), get_target("sm_90"))
    (found,) = (d for d in made.decisions if d.rule == "layout" and d.subjects == ("b",))
    assert found.accepted
    assert found.reason == "{192000, 480, 1}, then {192000, 1, 400}"
    numbers = dict(found.numbers)
    assert numbers["runner_up_bytes"] > 0
    assert numbers["runner_up_us"] == pytest.approx(numbers["runner_up_bytes"] / 4.25e6)


@pytest.mark.parametrize("device", DEVICES)
def test_what_lies_well_is_left_alone(device: str) -> None:
    graph = stream()
    text = (
        format_graph(graph)
        .replace("{192000, 1, 400}", "")
        .replace("%x: f32[2, 480, 400]", "%x: f32[2, 400, 480]")
    )
    text = text.replace("%c: f32[2, 480, 400]", "%c: f32[2, 400, 480]").replace(
        "%c[i0, i2, i1]", "%c[i0, i1, i2]"
    )
    plain = parse_graph(text)
    made = schedule(plain, get_target(device))
    assert not [d for d in made.decisions if d.rule == "layout"]


# Memory that is made by one loop and updated by another: all of its names lie alike.
UPDATED = """
graph @updated {
  input %x: f32[640, 480]
  %a: f32[640, 480]{1, 640} = pointwise [i0: 640, i1: 480] {
    t0 = load %x[i0, i1] : f32
    t1 = exp(t0)
    yield t1
  }
  %c: f32[640] = pointwise [i0: 640] {
    t0 = load %a[i0, 7] : f32
    yield t0
  }
  %b: f32[640, 480]{1, 640} = pointwise [i0: 640, i1: 480] into %a {
    t0 = load %c[i0] : f32
    t1 = load %x[i0, i1] : f32
    t2 = mul(t0, t1)
    yield t2
  }
  (%m: f32[640]) = reduce max [i0: 640 | r0: 480] {
    t0 = load %b[i0, r0] : f32
    yield t0
  }
  %o: f32[640, 480] = pointwise [i0: 640, i1: 480] {
    t0 = load %b[i0, i1] : f32
    t1 = load %m[i0] : f32
    t2 = sub(t0, t1)
    yield t2
  }
  return (%o)
}
"""


@pytest.mark.parametrize("device", DEVICES)
def test_memory_that_is_updated_moves_as_a_whole(device: str) -> None:
    graph = parse_graph(UPDATED)
    found: list[Graph] = []
    made = schedule(
        graph,
        get_target(device),
        observe=lambda name, after: found.append(after) if name == "layouts" else None,
    )
    verify_graph(found[0])
    verify_schedule(made)
    assert "{1, 640}" not in format_graph(found[0])
    given = [torch.randn(640, 480)]
    (wanted,), (result,) = interpret_graph(graph, given), interpret_schedule(made, given)
    torch.testing.assert_close(result, wanted)


def test_sizes_may_be_open() -> None:
    text = (
        STREAM.replace("RETURNED", "")
        .replace("FREE", "")
        .replace("graph @stream {", "graph @stream {\n  symbol n in [2, inf]")
    )
    for before, after in (("2, 480, 400", "n, 480, 400"), ("2, 400, 480", "n, 400, 480"), ("i0: 2", "i0: n")):
        text = text.replace(before, after)
    text = text.replace("[2, 400]", "[n, 400]").replace("[800, 480]", "[400*n, 480]")
    graph = parse_graph(text)
    found: list[Graph] = []
    made = schedule(
        graph,
        get_target("sm_90"),
        observe=lambda name, after: found.append(after) if name == "layouts" else None,
    )
    verify_graph(found[0])
    verify_schedule(made)
    assert strides_in(found[0], "a") == "rows"


def test_memory_that_scatters_fill_stays() -> None:
    update = re.compile(r"  %b: .*?\n  }\n", re.DOTALL)
    scatter = """  %b: f32[640, 480]{1, 640} = scatter add [i0: 640, i1: 480] into %a {
    t0 = load %x[i0, i1] : f32
    at [i0, i1]
    yield t0
  }
"""
    graph = parse_graph(update.sub(scatter, UPDATED))
    verify_graph(graph)
    made = schedule(graph, get_target("sm_90"))
    assert not [d for d in made.decisions if d.rule == "layout"]


def test_work_grows_with_the_terms_where_variables_are_tangled() -> None:
    def count_costs(count: int) -> int:
        draw = Random(count)
        calls = 0

        def cost(given: tuple[int, ...]) -> int:
            nonlocal calls
            calls += 1
            return (given[0] - given[1]) ** 2 + given[0]

        links = [Term((v, draw.choice([u for u in range(count) if u != v])), cost) for v in range(count)]
        links += [Term((v, draw.choice([u for u in range(count) if u != v])), cost) for v in range(count)]
        choose_cheapest([3] * count, links, most_entries=27)
        return calls

    assert count_costs(800) < 3 * count_costs(400)
