"""Kernels with a core: their text, their rules, and what they mean, compared with torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from coilwork_ir.conformance import CORE_CASES, check_cores, format_failures, make_random_core_case
from coilwork_ir.errors import EmitError, VerifyError
from coilwork_ir.index import evaluate, get_extents, symbol
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.nodes import (
    AttentionCore,
    AttentionGradientCore,
    ConvolutionCore,
    accumulate_of,
    get_factors,
)
from coilwork_ir.kernels.rewrite import list_kernel_roots, replace_roots
from coilwork_ir.kernels.text import format_kernel, parse_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.kernels.verify_template_kernels import check_core_taken
from coilwork_ir.mapping import find_fault, parse_mapping
from coilwork_ir.scalar import Op, iterate_postorder, op, rewrite
from coilwork_ir.target import LEAST, TARGETS, Capabilities, Target

SEEDS = range(120)
UNARY: dict[str, Callable[[Tensor], Tensor]] = {"exp": torch.exp, "tanh": torch.tanh, "neg": torch.neg}


@pytest.mark.parametrize("seed", SEEDS)
def test_text_round_trips(seed: int) -> None:
    kernel = parse_kernel(make_random_core_case(seed).text)
    verify_kernel(kernel)
    text = format_kernel(kernel)
    assert parse_kernel(text) == kernel
    assert format_kernel(parse_kernel(text)) == text


def runs(kernel: Kernel, seed: int) -> list[tuple[dict[str, Tensor], dict[str, Tensor], dict[str, int]]]:
    """Arguments before and after the kernel, and sizes."""
    case = make_random_core_case(seed)
    made = []
    for sizes in case.sizes:
        before, after = case.make(sizes), case.make(sizes)
        interpret_kernel(kernel, after, sizes)
        made.append((before, after, dict(sizes)))
    return made


def close(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    # in 16 bits results are rounded once; all else is computed wide
    bits = {torch.bfloat16: 8, torch.float16: 11}.get(dtype, 0)
    tolerance = 2.0**-bits if bits else 1e-5
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=10 * tolerance)


def convolved(core: ConvolutionCore, operands: dict[str, Tensor], sizes: dict[str, int]) -> Tensor:
    """What eager's convolution, or its gradient, makes of the operands."""
    windows = core.windows
    forward: Callable[..., Tensor] = partial(
        functional.conv1d if len(windows) == 1 else functional.conv2d,
        stride=[w.stride for w in windows],
        padding=[w.padding for w in windows],
        dilation=[w.dilation for w in windows],
        groups=core.groups,
    )
    shape = [evaluate(extent, sizes) for extent in get_extents(core.ranges)]
    if core.makes == "features":
        return forward(operands["image"], operands["weight"])
    free = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    operands = {**operands, core.makes: free}
    features = forward(operands["image"], operands["weight"])
    (gradient,) = torch.autograd.grad(features, free, operands["features"])
    return gradient


@pytest.mark.parametrize("seed", [seed for seed in SEEDS if seed % 2 == 0])
def test_a_convolution_is_that_of_torch(seed: int) -> None:
    kernel = parse_kernel(make_random_core_case(seed).text)
    core = kernel.core
    assert isinstance(core, ConvolutionCore)
    for before, after, sizes in runs(kernel, seed):
        operands: dict[str, Tensor] = {}
        for number, (role, body) in enumerate(core.operands):
            shape = [evaluate(extent, sizes) for extent in get_extents(body.ranges)]
            value = before[f"in{number}"].double().reshape(shape)
            if isinstance(body.value, Op):
                # a prologue is rounded to the operand's type
                value = UNARY[body.value.op](value).to(torch_dtype(body.value.dtype)).double()
            operands[role] = value
        total = convolved(core, operands, sizes)
        if "out1" in after:
            close(after["out1"], total.flatten(), after["out1"].dtype)
        if "in2" in before:
            bias = before["in2"].double().reshape(-1, *[1] * (total.dim() - 2))
            total = torch.tanh(total + bias)
        close(after["out0"], total.flatten(), after["out0"].dtype)


@pytest.mark.parametrize("seed", [seed for seed in SEEDS if seed % 2])
def test_attention_and_its_gradient_are_those_of_torch(seed: int) -> None:
    kernel = parse_kernel(make_random_core_case(seed).text)
    core = kernel.core
    assert isinstance(core, AttentionCore | AttentionGradientCore)
    weights = core.weights
    for before, after, sizes in runs(kernel, seed):
        batch, heads, rows, columns = (evaluate(e, sizes) for e in get_extents(weights.ranges))
        keys, length = (evaluate(e, sizes) for e in get_extents(weights.axes))
        shared = before["in1"].numel() // (batch * keys * length)
        shapes = ((batch, heads, rows, length), (batch, shared, keys, length), (batch, shared, keys, columns))
        q, k, v, b = (
            before[f"in{n}"].double().reshape(shape).requires_grad_()
            for n, shape in enumerate((*shapes, (heads, keys)))
        )
        query = q
        if isinstance(weights.query, Op):
            query = UNARY[weights.query.op](q).to(torch_dtype(weights.query.dtype)).double()
        each = heads // shared
        scores = 0.25 * query @ k.repeat_interleave(each, 1).mT + b[:, None]
        if weights.mask is not None:
            ahead = torch.arange(keys) - torch.arange(rows)[:, None]
            scores = scores.masked_fill(ahead > 1, float("-inf"))
        if isinstance(core, AttentionCore):
            output = scores.softmax(-1) @ v.repeat_interleave(each, 1)
            if "in4" in before:
                output = output * before["in4"].double()[:, None, None]
            close(after["out0"], output.detach().flatten(), after["out0"].dtype)
            if "out1" in after:
                close(after["out1"], scores.logsumexp(-1).detach().flatten(), after["out1"].dtype)
            continue
        saved = before["in5"].double().reshape(batch, heads, rows, 1)
        output, gradient = (before[f"in{n}"].double().reshape(batch, heads, rows, columns) for n in (4, 6))
        # weights from the logsumexp that is given, which is not these scores'
        weight = (scores - saved).exp()
        of_weight = gradient @ v.repeat_interleave(each, 1).mT
        passed = (weight * (of_weight - (gradient * output).sum(-1, keepdim=True))).detach()
        found = torch.autograd.grad((scores.masked_fill(weight == 0, 0) * passed).sum(), (q, k, b))
        (of_value,) = torch.autograd.grad(
            (weight.detach() @ v.repeat_interleave(each, 1) * gradient).sum(), v
        )
        wanted = (found[0], found[1], of_value, found[2])
        for number in range(len(kernel.stores)):
            made = after[f"out{number}"]
            scale = max(1.0, float(wanted[number].abs().max()))
            close(made / scale, wanted[number].flatten() / scale, made.dtype)


def test_rewriting_a_kernel_reaches_the_bodies_of_its_core() -> None:
    """What changes all scalar graphs of a kernel changes a core's, which stays a core of its kind."""
    for case in CORE_CASES[:8]:
        kernel = parse_kernel(case.text)
        again = replace_roots(kernel, list_kernel_roots(kernel))
        assert again == kernel
        assert kernel.core is not None and set(kernel.core.bodies) <= set(list_kernel_roots(kernel))
        turned = rewrite(
            list_kernel_roots(kernel),
            lambda v: op("abs", *v.operands) if isinstance(v, Op) and v.op in ("tanh", "neg", "exp") else v,
        )
        changed = replace_roots(kernel, turned)
        verify_kernel(changed)
        assert changed.core is not None and changed.core.kind == kernel.core.kind
        left = [v.op for v in iterate_postorder(list_kernel_roots(changed)) if isinstance(v, Op)]
        assert not {"tanh", "neg", "exp"} & set(left)


def test_without_windows_or_rows_nothing_is_computed_and_gradients_are_zero() -> None:
    """A batch of no elements: features have none either, and the gradient of the weight is 0."""
    seen = set()
    for seed in SEEDS:
        case = make_random_core_case(seed)
        kernel = parse_kernel(case.text)
        if not kernel.sizes or not isinstance(kernel.core, ConvolutionCore):
            continue
        args = case.make({"n0": 0})
        interpret_kernel(kernel, args, {"n0": 0})
        seen.add(kernel.core.makes)
        if kernel.core.makes == "weight":
            wanted = torch.zeros([evaluate(extent, {}) for extent in get_extents(kernel.core.ranges)])
            if "in2" in args:
                wanted = wanted + torch.tanh(args["in2"].float()).reshape(-1, *[1] * (wanted.dim() - 2))
            close(args["out0"], wanted.flatten(), args["out0"].dtype)
    assert seen == {"features", "image", "weight"}


def broken(kernel: Kernel) -> str:
    with pytest.raises(VerifyError) as caught:
        verify_kernel(kernel)
    assert caught.value.reason and caught.value.remedy and caught.value.node
    return caught.value.code


def test_rules_that_text_cannot_break() -> None:
    kernel = next(k for c in CORE_CASES if isinstance((k := parse_kernel(c.text)).core, AttentionCore))
    assert isinstance(kernel.core, AttentionCore)
    weights = kernel.core.weights
    for changed in (replace(weights, dropout=0.5), replace(weights, form="flash")):
        assert broken(replace(kernel, core=AttentionCore(weights=changed))) == "attention-state"
    assert accumulate_of(kernel.core) is weights.accumulate
    kernel = next(k for c in CORE_CASES if isinstance((k := parse_kernel(c.text)).core, ConvolutionCore))
    assert isinstance(kernel.core, ConvolutionCore)
    (role, body), other = kernel.core.operands
    unknown = symbol("a0", extent=symbol("n7", lo=0))
    operand = (role, replace(body, ranges=(unknown, *body.ranges[1:])))
    assert broken(replace(kernel, core=replace(kernel.core, operands=(operand, other)))) == "symbol-declared"


def test_directives_know_that_a_core_sums_along_its_axes() -> None:
    """Matrix units are legal for cores of 16 bits, and nobody shares out what a core sums along."""
    for case in CORE_CASES:
        kernel = parse_kernel(case.text)
        assert kernel.core is not None
        is_narrow = all(factor.dtype.itemsize == 2 for factor in get_factors(kernel.core))
        for text, is_legal in (("unit mma", is_narrow), ("unit fma", True), ("threads over r0", False)):
            mapping = parse_mapping(text)
            fault = find_fault(kernel, mapping)
            assert (fault is None) is is_legal, (format_kernel(kernel), text, fault)


@dataclass(frozen=True)
class Refusing:
    """A generator that declares some cores and refuses all, under their names or another one."""

    cores: frozenset[str] = frozenset()
    code: str = ""
    name: str = "refusing"

    def supports(self, target: Target) -> bool:
        return True

    def capabilities(self, target: Target) -> Capabilities:
        return replace(LEAST, cores=self.cores)

    def emit(self, kernel: Kernel, target: Target, options: object) -> KernelSource:
        check_core_taken(kernel, self.capabilities(target), self.name)
        raise EmitError(self.code, "anything")


def test_the_kit_wants_cores_refused_by_name() -> None:
    def run(*args: object) -> None:
        raise AssertionError("nothing was written")

    target = TARGETS["sm_90"]
    cores = [parse_kernel(case.text).core for case in CORE_CASES]
    kinds = {core.kind for core in cores if core is not None}
    assert kinds == {"convolution", "attention", "attention-gradient"}
    results = check_cores(Refusing(), target, run)
    assert not format_failures(results) and {r.status for r in results} == {"refused"}
    assert {r.reason for r in results} == kinds

    @dataclass(frozen=True)
    class Nameless(Refusing):
        def emit(self, kernel: Kernel, target: Target, options: object) -> KernelSource:
            raise EmitError("other", "anything")

    assert all(r.status == "failed" for r in check_cores(Nameless(), target, run))
