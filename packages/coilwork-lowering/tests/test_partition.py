"""Common subexpressions, the partitioner and the decomposition table."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import LoweringOptions, decompositions
from coilwork_lowering.rewrites.clean_up import merge_common_subexpressions

aten = torch.ops.aten


def test_equal_calls_are_merged() -> None:
    gm = make_fx(lambda x: x.sin() + x.sin() * (x + 1.0) - (x + 1.0))(torch.randn(3))
    expected = gm(torch.ones(3))
    assert merge_common_subexpressions(gm.graph) == 2
    torch.testing.assert_close(gm(torch.ones(3)), expected)


def test_different_calls_stay() -> None:
    gm = make_fx(lambda x: (x + 1, x + 1.0, x * 0.0, x * -0.0, torch.rand(3), torch.rand(3)))(torch.ones(3))
    assert merge_common_subexpressions(gm.graph) == 0


def test_results_that_the_caller_gets_stay_two() -> None:
    gm = make_fx(lambda x: (x.sin(), x.sin(), x.cos(), x.cos() + 1, x.exp().t(), x.exp()))(torch.ones(3, 3))
    assert merge_common_subexpressions(gm.graph) == 1
    found = gm(torch.ones(3, 3))
    assert len({t.data_ptr() for t in found}) == len(found)


def test_views_taken_before_and_after_a_write_stay_two() -> None:
    def graph(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.ops.aten.slice.Tensor(x, 0, 1, 3)
        total = before + 1
        torch.ops.aten.copy_.default(x, x * 2)
        after = torch.ops.aten.slice.Tensor(x, 0, 1, 3)
        return total, after + 1

    gm = torch.fx.symbolic_trace(graph)
    assert merge_common_subexpressions(gm.graph) == 0
    first, second = gm(torch.ones(4))
    assert first.tolist() == [2, 2] and second.tolist() == [3, 3]


def test_what_is_decomposed() -> None:
    table = decompositions()
    for taken in (aten._softmax, aten.native_layer_norm, aten.gelu, aten._to_copy):
        assert taken.default in table
    for kept in (
        aten.convolution.default,
        aten.native_dropout.default,
        aten.embedding_dense_backward.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten.sum.dim_IntList,
        aten.addcmul.default,
        aten.mm.default,
    ):
        assert kept not in table
    assert aten.gelu.default not in decompositions(LoweringOptions(keep=("aten.gelu",)))
    assert aten._softmax.default not in decompositions(LoweringOptions(fallback=("aten._softmax.default",)))


def test_take_never_reads_its_index_on_the_host() -> None:
    table = decompositions()
    for index in (torch.tensor(-2), torch.tensor([[3, 0], [-1, 5]])):
        gm = make_fx(torch.take, decomposition_table=table, tracing_mode="fake")(torch.ones(3, 2).t(), index)
        x = torch.randn(3, 2).t()
        assert torch.equal(gm(x, index), torch.take(x, index))


def test_unpooling_keeps_channels_last() -> None:
    x = torch.randn(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    index = torch.arange(12).view(3, 4).expand(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    gm = make_fx(lambda a, k: aten.max_unpool2d(a, k, [6, 8]), decomposition_table=decompositions())(x, index)
    assert aten.max_unpool2d.default not in {node.target for node in gm.graph.nodes}
    assert gm(x, index).stride() == aten.max_unpool2d(x, index, [6, 8]).stride() == (96, 1, 16, 2)


def test_partitioning_does_not_load_inductors_lowering() -> None:
    code = """
import sys, torch
from coilwork_lowering import decompositions, partition
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch._aot_autograd.utils import make_boxed_func
def backend(gm, inputs):
    boxed = lambda g, i: make_boxed_func(g.forward)
    return aot_module_simplified(gm, inputs, fw_compiler=boxed, bw_compiler=boxed,
                                 decompositions=decompositions(), partition_fn=partition)
x = torch.randn(3, requires_grad=True)
torch.compile(lambda a: (a.sin() * a.sin()).sum(), backend=backend)(x).backward()
assert torch.allclose(x.grad, (2 * x).sin())
print(*[m for m in ("torch._inductor.lowering", "torch._inductor.ir") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
