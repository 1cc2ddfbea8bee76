"""Graphs, as text, against the torch code they stand for."""

from __future__ import annotations

import pytest
import torch
from tensor_results import tensors_of
from torch import Tensor

from coilwork_ir.errors import InterpretError, VerifyError
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.loops.verify import verify_graph

GENERATOR = torch.Generator().manual_seed(7)
X = torch.randn(5, 6, generator=GENERATOR)


def run_all(text: str, *inputs: Tensor | int, **constants: Tensor) -> list[Tensor | int | None]:
    graph = parse_graph(text)
    verify_graph(graph)
    return interpret_graph(graph, inputs, constants)


def run(text: str, *inputs: Tensor | int, **constants: Tensor) -> list[Tensor]:
    """As `run_all`, of a graph that returns tensors only."""
    return tensors_of(run_all(text, *inputs, **constants))


def test_pointwise_reduction_and_symbolic_sizes() -> None:
    text = """
graph @rms {
  symbol n in [1, inf]
  symbol m in [1, inf]
  input %x: f32[n, m]
  constant "weight" %w: f32[6]
  (%s: f32[n]) = reduce sum [i0: n | r0: m] {
    t0 = load %x[i0, r0] : f32
    t1 = mul(t0, t0)
    yield t1
  }
  %y: f32[n, m] = pointwise [i0: n, i1: m] {
    t0 = load %s[i0] : f32
    t1 = index [m]
    t2 = cast(t1) : f32
    t3 = div(t0, t2)
    t4 = rsqrt(t3)
    t5 = load %x[i0, i1] : f32
    t6 = mul(t5, t4)
    t7 = load %w[i1] : f32
    t8 = mul(t6, t7)
    yield t8
  }
  return (%y, `n*m`, none)
}
"""
    weight = torch.randn(6, generator=GENERATOR)
    y, count, nothing = run_all(text, X, weight=weight)
    expected = X * torch.rsqrt((X * X).mean(-1, keepdim=True)) * weight
    torch.testing.assert_close(y, expected)
    assert (count, nothing) == (30, None)


def test_strides_masked_loads_and_transposes() -> None:
    text = """
graph @shift {
  input %x: f32[5, 6]{1, 5}
  %y: f32[6, 5]{1, 6} = pointwise [i0: 6, i1: 5] {
    t0 = index [i0]
    t1 = const 2 : i64
    t2 = ge(t0, t1)
    t3 = load %x[i1, i0 - 2] : f32 mask t2 other -9.0
    yield t3
  }
  return (%y)
}
"""
    x = X.t().contiguous().t()
    (y,) = run(text, x)
    assert isinstance(y, torch.Tensor)
    assert y.stride() == (1, 6)
    expected = torch.full((6, 5), -9.0)
    expected[2:] = x.t()[:4]
    assert torch.equal(y, expected)


EMBEDDING = """
graph @embedding {
  symbol n in [0, inf]
  input %i: i64[n]
  input %w: f32[5, 6]
  %y: f32[n, 6] = pointwise [i0: n, i1: 6] {
    t0 = load %i[i0] : i64
    t1 = const 0 : i64
    t2 = lt(t0, t1)
    t3 = const 5 : i64
    t4 = add(t0, t3)
    t5 = where(t2, t4, t0)
    t6 = load %w[@0, i1] using (t5) : f32
    t7 = ge(t5, t1)
    t8 = lt(t5, t3)
    t9 = bitwise_and(t7, t8)
    check t9 IndexError "index out of range in self"
    yield t6
  }
  return (%y)
}
"""


def test_indirect_loads_and_checks() -> None:
    index = torch.tensor([4, 0, -1, 2])
    (y,) = run(EMBEDDING, index, X)
    torch.testing.assert_close(y, X[index])
    (empty,) = run(EMBEDDING, torch.zeros(0, dtype=torch.int64), X)
    assert empty.shape == (0, 6)
    with pytest.raises(IndexError, match="index out of range in self"):
        run(EMBEDDING, torch.tensor([5]), X)


def test_an_unchecked_access_outside_of_a_buffer_is_reported() -> None:
    text = """
graph @outside {
  input %x: f32[5, 6]
  %y: f32[7] = pointwise [i0: 7] {
    t0 = load %x[0, i0] : f32
    yield t0
  }
  return (%y)
}
"""
    with pytest.raises(InterpretError, match=r"index 6 of %x is outside of 0\.\.5"):
        run(text, X)


def test_mutation_reaches_the_callers_tensor() -> None:
    text = """
graph @update {
  input %x: f32[5, 6]
  %row: f32[6] = view %x offset `6`
  %row1: f32[6] = pointwise [i0: 6] into %row {
    t0 = load %row[5 - i0] : f32
    yield t0
  }
  return (%row1)
}
"""
    x = X.clone()
    (row,) = run(text, x)
    expected = X.clone()
    expected[1] = X[1].flip(0)
    assert torch.equal(x, expected)
    assert isinstance(row, torch.Tensor)
    row.zero_()
    assert not x[1].any()


@pytest.mark.parametrize("mode", ["store", "add", "mul", "min", "max"])
def test_a_scatter_stores_or_combines_where_its_mask_allows(mode: str) -> None:
    text = f"""
graph @scatter {{
  input %x: f32[5, 6]
  input %i: i64[4]
  input %v: f32[4, 6]
  %y: f32[5, 6] = scatter {mode} [i0: 4, i1: 6] into %x {{
    t0 = load %i[i0] : i64
    t1 = load %v[i0, i1] : f32
    t2 = index [i1]
    t3 = const 4 : i64
    t4 = lt(t2, t3)
    at [@0, i1] using (t0) mask t4
    yield t1
  }}
  return (%y)
}}
"""
    index = torch.tensor([3, 1, 4, 0]) if mode == "store" else torch.tensor([3, 1, 3, 0])
    values = torch.randn(4, 6, generator=GENERATOR)
    x = X.clone()
    (y,) = run(text, x, index, values)
    expected = X.clone()
    wide = index[:, None].expand(4, 4)
    if mode == "store":
        expected[:, :4].scatter_(0, wide, values[:, :4])
    else:
        names = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}
        expected[:, :4] = X[:, :4].scatter_reduce(0, wide, values[:, :4], names[mode])
    torch.testing.assert_close(y, expected)
    assert torch.equal(x, y)


def test_reductions_of_several_results_and_positions() -> None:
    text = """
graph @several {
  input %x: f32[5, 6]
  (%mean: f32[6], %m2: f32[6]) = reduce welford [i0: 6 | r0: 5] {
    t0 = load %x[r0, i0] : f32
    yield t0
  }
  (%at: i64[]) = reduce argmax [ | r0: 5, r1: 6] {
    t0 = load %x[r0, r1] : f32
    yield t0
  }
  (_, %sum: f32[5]) = reduce online_softmax [i0: 5 | r0: 6] {
    t0 = load %x[i0, r0] : f32
    yield t0
  }
  return (%mean, %m2, %at, %sum)
}
"""
    mean, m2, at, total = run(text, X)
    torch.testing.assert_close(mean, X.mean(0))
    torch.testing.assert_close(m2, X.var(0) * 4)
    torch.testing.assert_close(at, X.argmax())
    torch.testing.assert_close(total, torch.exp(X - X.amax(1, keepdim=True)).sum(1))


def test_scan_and_sort() -> None:
    text = """
graph @order {
  input %x: f32[5, 6]
  (%c: f32[5, 6]) = scan sum [i0: 5, i1: 6] along i0 reverse {
    t0 = load %x[i0, i1] : f32
    yield t0
  }
  (%v: f32[5, 6], %p: i64[5, 6]) = scan max [i0: 5, i1: 6] along i1 {
    t0 = load %x[i0, i1] : f32
    yield t0
  }
  (%s: f32[5, 6], %i: i64[5, 6]) = sort [i0: 5, i1: 6] along i0 descending stable {
    t0 = load %x[i0, i1] : f32
    yield t0
  }
  return (%c, %v, %p, %s, %i)
}
"""
    c, v, p, s, i = run(text, X)
    torch.testing.assert_close(c, X.flip(0).cumsum(0).flip(0))
    values, positions = torch.cummax(X, 1)
    assert torch.equal(v, values) and torch.equal(p, positions)
    values, positions = torch.sort(X, dim=0, descending=True, stable=True)
    assert torch.equal(s, values) and torch.equal(i, positions)


@pytest.mark.parametrize("back", ["", " reverse"])
def test_scan_by_a_function(back: str) -> None:
    text = f"""
graph @recurrence {{
  input %a: f32[5, 6]
  input %k: i64[6]
  (%p: f32[5, 6], %h: f32[5, 6], _) = scan by {{
    t0 = parameter 0 : f32 t1 = parameter 1 : f32 t2 = parameter 3 : f32 t3 = parameter 4 : f32
    t4 = mul(t0, t2) t5 = mul(t2, t1) t6 = add(t5, t3)
    t7 = parameter 5 : i64
    yield (t4, t6, t7)
  }} [i0: 5, i1: 6] along i0{back} {{
    t0 = load %a[i0, i1] : f32
    t1 = exp(t0)
    t2 = load %k[i1] : i64
    yield t0, t1, t2
  }}
  return (%p, %h)
}}
"""
    graph = parse_graph(text)
    assert parse_graph(format_graph(graph)) == graph
    a, b = (X.flip(0), X.exp().flip(0)) if back else (X, X.exp())
    product, h = [a[0]], [b[0]]
    for k in range(1, 5):
        product.append(product[-1] * a[k])
        h.append(a[k] * h[-1] + b[k])
    wanted = [torch.stack(product), torch.stack(h)]
    wanted = [value.flip(0) for value in wanted] if back else wanted
    for found, value in zip(run(text, X, torch.arange(6)), wanted, strict=True):
        torch.testing.assert_close(found, value)


@pytest.mark.parametrize("down", ["", "descending "])
def test_the_first_of_a_sort(down: str) -> None:
    text = f"""
graph @first {{
  input %x: f32[5, 6]
  (%s: f32[2, 6], %i: i64[2, 6]) = sort [i0: 5, i1: 6] along i0 first `2` {down}stable {{
    t0 = load %x[i0, i1] : f32
    yield t0
  }}
  return (%s, %i)
}}
"""
    s, i = run(text, X)
    values, positions = torch.sort(X, dim=0, descending=bool(down), stable=True)
    assert torch.equal(s, values[:2]) and torch.equal(i, positions[:2])


@pytest.mark.parametrize("down", ["", "descending "])
def test_the_first_as_topk_chooses_among_equals(down: str) -> None:
    text = f"""
graph @first {{
  input %x: f32[3, 40]
  (%s: f32[3, 6], %i: i64[3, 6]) = sort [i0: 3, i1: 40] along i1 first `6` {down}as_topk {{
    t0 = load %x[i0, i1] : f32
    yield t0
  }}
  return (%s, %i)
}}
"""
    graph = parse_graph(text)
    assert parse_graph(format_graph(graph)) == graph
    x = torch.stack([torch.zeros(40), torch.arange(40) % 3.0, torch.arange(40.0)])
    s, i = run(text, x)
    values, positions = torch.topk(x, 6, largest=bool(down))
    assert torch.equal(s, values) and torch.equal(i, positions)
    assert not torch.equal(i, torch.sort(x, dim=1, descending=bool(down), stable=True).indices[:, :6])


def test_low_precision_rounds_at_casts_only() -> None:
    text = """
graph @half {
  input %x: bf16[4]
  %y: bf16[4] = pointwise [i0: 4] {
    t0 = load %x[i0] : bf16
    t1 = cast(t0) : f32
    t2 = const 1.0 : f32
    t3 = add(t1, t2)
    t4 = sub(t3, t2)
    t5 = cast(t4) : bf16
    yield t5
  }
  return (%y)
}
"""
    x = torch.tensor([0.001, 0.3, -0.0007, 2.5]).to(torch.bfloat16)
    (y,) = run(text, x)
    expected = ((x.float() + 1.0) - 1.0).to(torch.bfloat16)
    assert torch.equal(y, expected)
    assert not torch.equal(expected, (x + 1.0) - 1.0)


def test_external_calls_bind_data_dependent_sizes() -> None:
    text = """
graph @positions {
  input %x: f32[5, 6]
  extern "aten.nonzero.default" (%x) aten binds (u0 in [0, inf] of 0 0) defines (%k: i64[u0, 2]{2, 1})
  extern "aten.sum.dim_IntList" (%x, [0], keepdim = True) aten defines (%s: f32[1, 6])
  extern "aten.max.dim" (%x, 1) aten defines (%v: f32[5], _) tuple
  extern "aten.sym_size.int" (%k, 0) aten defines (size u1 in [0, inf])
  %first: i64[u0] = pointwise [i0: u0] {
    t0 = load %k[i0, 0] : i64
    yield t0
  }
  assert `u0` eq `u1` "sizes differ"
  return (%first, `2*u0`, %s, %v, `u1`)
}
"""
    x = torch.relu(X)
    found, twice, total, top, again = run_all(text, x)
    (first,) = tensors_of([found])
    expected = x.nonzero()
    assert torch.equal(first, expected[:, 0])
    assert (twice, again) == (2 * len(expected), len(expected))
    torch.testing.assert_close(total, x.sum(0, keepdim=True))
    torch.testing.assert_close(top, x.amax(1))


def test_external_calls_that_overwrite_and_alias() -> None:
    text = """
graph @fill {
  input %x: f32[5, 6]
  extern "aten.fill_.Scalar" (%x, 2.0) aten defines (_) mutates (%x1: f32[5, 6] of %x) effect
  extern "aten.transpose.int" (%x1, 0, 1) aten defines (%t: f32[6, 5]{1, 6}) aliases (0 of %x1)
  extern "aten.transpose.int" (%x1, 0, 1) aten defines (%c: f32[6, 5])
  return (%x1, %t, %c)
}
"""
    x = X.clone()
    x1, t, c = run(text, x)
    assert torch.equal(x, torch.full((5, 6), 2.0)) and torch.equal(x1, x)
    assert t.data_ptr() == x.data_ptr()
    assert c.stride() == (5, 1) and torch.equal(c, t)


def test_views_of_other_types() -> None:
    text = """
graph @bits {
  input %x: f32[5, 6]
  %b: i32[6] = view %x offset `12`
  %h: bf16[5, 6]{12, 2} = view %x offset `1`
  return (%b, %h)
}
"""
    bits, upper = run(text, X)
    assert torch.equal(bits, X[2].view(torch.int32))
    assert torch.equal(upper, X.view(torch.bfloat16)[:, 1::2])


COND = """
graph @branch {
  symbol n in [1, inf]
  input %p: bool[]
  input %x: f32[n]
  (%y: f32[n]) = cond %p (%x, `n`) {
    graph @double {
      symbol k in [1, inf]
      input %a: f32[k]
      input size `k`
      %b: f32[k] = pointwise [i0: k] {
        t0 = load %a[i0] : f32
        t1 = index [k + i0]
        t2 = cast(t1) : f32
        t3 = add(t0, t2)
        yield t3
      }
      return (%b)
    }
    graph @same {
      input %a: f32[n]
      input size `n`
      return (%a)
    }
  }
  return (%y)
}
"""


def test_cond_runs_one_branch() -> None:
    x = torch.randn(4, generator=GENERATOR)
    (y,) = run(COND, torch.tensor(True), x)
    torch.testing.assert_close(y, x + 4 + torch.arange(4))
    (y,) = run(COND, torch.tensor(False), x)
    assert isinstance(y, torch.Tensor)
    assert torch.equal(y, x) and y.data_ptr() != x.data_ptr()


def test_while_repeats_its_body() -> None:
    text = """
graph @loop {
  input %i: i64[]
  input %x: f32[3]
  input %step: f32[3]
  (%j: i64[], %y: f32[3]) = while (%i, %x) (%step) {
    graph @more {
      input %i: i64[]
      input %x: f32[3]
      input %s: f32[3]
      %c: bool[] = pointwise [] {
        t0 = load %i[] : i64
        t1 = const 5 : i64
        t2 = lt(t0, t1)
        yield t2
      }
      return (%c)
    }
    graph @body {
      input %i: i64[]
      input %x: f32[3]
      input %s: f32[3]
      %k: i64[] = pointwise [] {
        t0 = load %i[] : i64
        t1 = const 1 : i64
        t2 = add(t0, t1)
        yield t2
      }
      %z: f32[3] = pointwise [i0: 3] {
        t0 = load %x[i0] : f32
        t1 = load %s[i0] : f32
        t2 = add(t0, t1)
        yield t2
      }
      return (%k, %z)
    }
  }
  return (%j, %y)
}
"""
    x, step = torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
    j, y = run(text, torch.tensor(2), x, step)
    assert int(j) == 5
    assert torch.equal(y, 3 * step)
    assert torch.equal(x, torch.zeros(3))
    j, y = run(text, torch.tensor(9), x, step)
    assert torch.equal(y, x)


STACKING = """
graph @stacking {
  input %i: i64[]
  input %stack: f32[4]
  (%j: i64[]) = while (%i) (%stack) mutates (%full: f32[4] of %stack) {
    graph @more {
      input %i: i64[]
      input %s: f32[4]
      %c: bool[] = pointwise [] {
        t0 = load %i[] : i64
        t1 = const 3 : i64
        t2 = lt(t0, t1)
        yield t2
      }
      return (%c)
    }
    graph @body {
      input %i: i64[]
      input %s: f32[4]
      %k: i64[] = pointwise [] {
        t0 = load %i[] : i64
        t1 = const 1 : i64
        t2 = add(t0, t1)
        yield t2
      }
      %t: f32[4] = pointwise [i0: 4] into %s {
        t0 = load %s[i0] : f32
        t1 = load %i[] : i64
        t2 = index [i0]
        t3 = eq(t1, t2)
        t4 = const 7.0 : f32
        t5 = where(t3, t4, t0)
        yield t5
      }
      return (%k)
    }
  }
  return (%j, %full)
}
"""


def test_a_loop_overwrites_what_it_says_it_does() -> None:
    graph = parse_graph(STACKING)
    assert parse_graph(format_graph(graph)) == graph
    stack = torch.arange(4.0)
    j, full = run(STACKING, torch.tensor(1), stack)
    assert int(j) == 3
    assert torch.equal(full, torch.tensor([0.0, 7.0, 7.0, 3.0]))
    assert full.data_ptr() == stack.data_ptr()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (" mutates (%full: f32[4] of %stack)", "", "overwrites its input through %s"),
        ("(%full: f32[4] of %stack)", "(%full: f32[4] of %stack, %z: i64[] of %i)", "no operand that stays"),
        ("return (%j, %full)", "return (%j, %stack)", "was taken over by %full"),
    ],
)
def test_a_loop_that_overwrites_something_else_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_graph(parse_graph(STACKING.replace(old, new)))


def test_an_asserted_size_is_checked_at_run_time() -> None:
    text = """
graph @sizes {
  symbol n in [0, inf]
  input %x: f32[n]
  assert `n % 4` eq `0` "n must be a multiple of 4"
  return (`n`)
}
"""
    assert run_all(text, torch.zeros(8)) == [8]
    with pytest.raises(RuntimeError, match="multiple of 4"):
        run(text, torch.zeros(7))


SIMPLE = """
graph @simple {
  symbol n in [2, 100]
  input %x: f32[n, 3]
  input size `n`
  constant "c" %c: f32[2]
  return (%x)
}
"""


@pytest.mark.parametrize(
    "inputs, constants, code",
    [
        ((torch.zeros(4, 3),), {}, "input-count"),
        ((4, 4), {}, "input-type"),
        ((torch.zeros(4, 3, dtype=torch.float64), 4), {}, "input-type"),
        ((torch.zeros(4, 3), torch.zeros(2)), {}, "input-type"),
        ((torch.zeros(4), 4), {}, "input-layout"),
        ((torch.zeros(4, 2), 4), {}, "input-layout"),
        ((torch.zeros(3, 4).t(), 4), {}, "input-layout"),
        ((torch.zeros(5, 3), 4), {}, "input-layout"),
        ((torch.zeros(1, 3), 1), {}, "symbol-range"),
        ((torch.zeros(4, 3), 4), {"d": torch.zeros(2)}, "constant"),
    ],
)
def test_wrong_inputs_are_named(
    inputs: tuple[Tensor | int, ...], constants: dict[str, Tensor], code: str
) -> None:
    table = constants or {"c": torch.zeros(2)}
    with pytest.raises(InterpretError) as caught:
        interpret_graph(parse_graph(SIMPLE), inputs, table)
    assert caught.value.code == code


def test_an_unknown_operator_is_named() -> None:
    text = (
        'graph @g {\n input %x: f32[2]\n extern "nolib.noop.default" (%x) custom defines (%y: f32[2])\n '
        "return (%y)\n}"
    )
    with pytest.raises(InterpretError, match=r"no operator 'nolib\.noop\.default'"):
        run(text, torch.zeros(2))


def test_results_have_their_declared_shape() -> None:
    text = (
        'graph @g {\n input %x: f32[2]\n extern "aten.neg.default" (%x) aten defines (%y: f32[3])\n return '
        "(%y)\n}"
    )
    with pytest.raises(InterpretError, match="%y is declared"):
        run(text, torch.zeros(2))
