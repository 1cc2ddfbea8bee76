"""Programs that launch Triton kernels of their own, each with what eager PyTorch says of it.

On a GPU these are called in the test's process. Elsewhere `python -m integration_tests.user_kernel_cases`
runs them over CPU tensors. Torch captures launches only if Triton has a driver, so there is one that tells of
a device, and Triton's interpreter runs what is captured. The process prints what is wrong with each case.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

N: Final = 48
LAUNCH_REASON: Final = "it launches a kernel of the user's"


# ---- kernels ----


@triton.jit
def twice(value):
    return value * 2


@triton.jit
def twice_and_one(value):
    return twice(value) + 1


@triton.jit
def combine(x, y, out, n, BLOCK: tl.constexpr):
    """A kernel that calls others; it's "quoted", '''thrice''' and with a back\\slash."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    left, right = tl.load(x + at, mask=inside), tl.load(y + at, mask=inside)
    tl.store(out + at, twice_and_one(left) + right, mask=inside)


@triton.jit
def scale(x, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * factor, mask=at < n)


@triton.jit
def double_rows(x, out, x_step, out_step, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * x_step + at, mask=at < columns)
    tl.store(out + row * out_step + at, value * 2, mask=at < columns)


@triton.jit
def both(first, second, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(first + at, at.to(tl.float32), mask=at < n)
    tl.store(second + at, -at.to(tl.float32), mask=at < n)


@triton.jit
def choose(x, bias, out, n, kind: tl.constexpr, dtype: tl.constexpr, negate, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    if bias is not None:
        value += tl.load(bias + at, mask=at < n)
    if kind == "a 'plain' \"kind\"":
        value += 1
    value = tl.where(negate, -value, value)
    tl.store(out + at, (value * factor).to(dtype), mask=at < n)


def _configs() -> list[triton.Config]:
    return [triton.Config({"BLOCK": 16}, num_warps=1), triton.Config({"BLOCK": 32}, num_warps=2)]


@triton.autotune(configs=_configs(), key=["n"], restore_value=["x"])
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(out + at, value + 1, mask=at < n)
    tl.store(x + at, value * 2, mask=at < n)


def _keep_wide(configs: list[triton.Config], named: dict[str, Any], **others: Any) -> list[triton.Config]:
    return [config for config in configs if config.kwargs["BLOCK"] > 16]


@triton.autotune(
    configs=_configs(), key=["n"], prune_configs_by={"early_config_prune": _keep_wide}, reset_to_zero=["out"]
)
@triton.jit
def accumulate(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.autotune(configs=[triton.Config({}, num_warps=1), triton.Config({}, num_warps=2)], key=["n"])
@triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["n"])})
@triton.jit
def in_one_block(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@triton.jit
def sine(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.sin(tl.load(x + at, mask=at < n)), mask=at < n)


@triton.jit
def sine_gradient(x, gradient, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.cos(tl.load(x + at, mask=at < n)) * tl.load(gradient + at, mask=at < n)
    tl.store(out + at, value, mask=at < n)


@triton.jit
def copy_block(source, out, BLOCK: tl.constexpr):
    tile = source.load([0, 0])
    at = tl.arange(0, BLOCK)
    tl.store(out + at[:, None] * BLOCK + at[None, :], tile * 2)


# ---- operators and modules around them ----


@triton_op("coilwork_cases::sine", mutates_args=())
def sine_operator(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    wrap_triton(sine)[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), 16)
    return out


def _sine_backward(context: Any, gradient: Tensor) -> Tensor:
    (x,) = context.saved_tensors
    out = torch.empty_like(x)
    wrap_triton(sine_gradient)[(triton.cdiv(x.numel(), 16),)](x, gradient.contiguous(), out, x.numel(), 16)
    return out


sine_operator.register_autograd(
    _sine_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0])
)


class Sine(torch.autograd.Function):
    """The sine, with kernels for both directions."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        out = torch.empty_like(x)
        sine[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), 16)
        return out

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        out = torch.empty_like(x)
        sine_gradient[(triton.cdiv(x.numel(), 16),)](x, gradient.contiguous(), out, x.numel(), 16)
        return out


# ---- cases ----

Inputs = Callable[[str], list[Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A program and what it computes.

    Attributes:
        run: the program.
        eager: the same in plain PyTorch, which may overwrite inputs as the program does.
        inputs: makes the inputs on a device.
        kernels: fused kernels of all its graphs, at most; a launch of the user's is none.
        launches: launches of the user's, in all its graphs.
        dynamic: sizes are open.
        needs_gpu: it runs on GPUs only.
    """

    run: Callable[..., Any]
    eager: Callable[..., Any]
    inputs: Inputs
    kernels: int
    launches: int
    dynamic: bool = False
    needs_gpu: bool = False


def vectors(device: str) -> list[Tensor]:
    return [torch.randn(N, device=device) for _ in range(2)]


def trained(device: str) -> list[Tensor]:
    return [torch.randn(6, 8, device=device, requires_grad=k == 0) for k in range(2)]


def matrices(device: str) -> list[Tensor]:
    return [torch.randn(6, 16, device=device), torch.randn(16, 8, device=device)]


def fused_around(x: Tensor, y: Tensor) -> Tensor:
    before = (x + 1).relu() * 2
    out = torch.empty_like(before)
    n = before.numel()
    combine[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](before, y, out, n, BLOCK=16)
    return (out * 2).relu() + 1


def _fused_around(x: Tensor, y: Tensor) -> Tensor:
    return (((x + 1).relu() * 2 * 2 + 1 + y) * 2).relu() + 1


def chain(x: Tensor, y: Tensor) -> Tensor:
    first, second = torch.empty_like(x), torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 16),)
    combine[grid](x, y, first, x.numel(), BLOCK=16)
    combine[grid](first, y, second, x.numel(), BLOCK=16)
    scale[grid](second, x.numel(), 0.5, 16)
    return second


def overwritten_input(x: Tensor, y: Tensor) -> Tensor:
    scale[(3,)](x, N, 2.5, 16)
    scale[(3,)](x, N, 2.0, 16)
    return x + y


def old_value(x: Tensor, y: Tensor) -> Tensor:
    before = x + 1
    changed = before.clone()
    scale[(3,)](changed, N, 2.5, 16)
    return changed + before


def slice_of_input(x: Tensor, y: Tensor) -> Tensor:
    scale[(1,)](x[16:32], 16, 3.0, 16)
    return x * y


def _slice_of_input(x: Tensor, y: Tensor) -> Tensor:
    x[16:32] *= 3
    return x * y


def slices(x: Tensor, y: Tensor) -> Tensor:
    whole = torch.zeros(6, 16, device=x.device)
    source, target = x[:, 3:11], whole[:, 4:12]
    double_rows[(6,)](source, target, source.stride(0), target.stride(0), 8, 8)
    return whole


def _slices(x: Tensor, y: Tensor) -> Tensor:
    whole = torch.zeros(6, 16, device=x.device)
    whole[:, 4:12] = x[:, 3:11] * 2
    return whole


def two_parts(x: Tensor, y: Tensor) -> Tensor:
    whole = torch.zeros(2, 2, N, device=x.device)
    combine[(3,)](x, y, whole[0, 1], N, BLOCK=16)
    combine[(3,)](y, x, whole[1, 0], N, BLOCK=16)
    both[(3,)](whole[1, 1], whole[0, 0], N, 16)
    return whole


def _two_parts(x: Tensor, y: Tensor) -> Tensor:
    numbers = torch.arange(N, dtype=x.dtype, device=x.device)
    return torch.stack([torch.stack([-numbers, x * 2 + 1 + y]), torch.stack([y * 2 + 1 + x, numbers])])


def product_operand(x: Tensor, y: Tensor) -> Tensor:
    product, columns = x @ y, (x @ y).t()
    first, second = torch.empty(6, 8, device=x.device), torch.empty(8, 6, device=x.device)
    double_rows[(6,)](product, first, product.stride(0), first.stride(0), 8, 8)
    columns = columns.contiguous()
    double_rows[(8,)](columns, second, columns.stride(0), second.stride(0), 6, 8)
    return first + second.t()


def arguments(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first, second = torch.empty_like(x), torch.empty_like(x)
    choose[(3,)](x, y, first, N, "a 'plain' \"kind\"", tl.float32, True, 1.5, 16)
    choose[(3,)](x, None, second, N, "another", tl.float32, False, 2.0, 16)
    return first, second


def autotuned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    changed, out = x + 1, torch.empty_like(x)
    tuned[lambda meta: (triton.cdiv(changed.numel(), meta["BLOCK"]),)](changed, out, changed.numel())
    return changed, out


def pruned(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    accumulate[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out + 1


def by_heuristics(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    in_one_block[(1,)](x, out, x.numel())
    return out


def operator_step(x: Tensor, y: Tensor) -> Tensor:
    return (sine_operator(x * y) * y).relu()


def function_step(x: Tensor, y: Tensor) -> Tensor:
    return (Sine.apply(x * y) * y).relu()


def _step(x: Tensor, y: Tensor) -> Tensor:
    return ((x * y).sin() * y).relu()


def empty_grid(x: Tensor, y: Tensor) -> Tensor:
    out = x + 1
    scale[(0,)](out, 0, 3.0, 16)
    return out


def numbers_from_data(x: Tensor, y: Tensor) -> Tensor:
    out, count = x + 1, (y > 0).sum().item()
    torch._check(count <= N)
    scale[(3,)](out, count, y.abs().sum().item(), 16)
    return out


def _numbers_from_data(x: Tensor, y: Tensor) -> Tensor:
    out, count = x + 1, int((y > 0).sum())
    out[:count] *= y.abs().sum()
    return out


def in_branches(x: Tensor, y: Tensor) -> Tensor:
    def scale_by(factor: float) -> Callable[[Tensor], Tensor]:
        def branch(value: Tensor) -> Tensor:
            out = value + 1
            scale[(3,)](out, N, factor, 16)
            return out

        return branch

    return torch.cond(y.sum() > 0, scale_by(2.0), scale_by(3.0), (x,))


def described(x: Tensor, y: Tensor) -> Tensor:
    from triton.tools.tensor_descriptor import TensorDescriptor

    out = torch.empty(32, 32, device=x.device)
    source = x + 1
    copy_block[(1,)](TensorDescriptor.from_tensor(source, [32, 32]), out, 32)
    return out + 1


CASES: Final = {
    "fused around": Case(run=fused_around, eager=_fused_around, inputs=vectors, kernels=2, launches=1),
    "fused around, open sizes": Case(
        run=fused_around, eager=_fused_around, inputs=vectors, kernels=2, launches=1, dynamic=True
    ),
    "several in a row": Case(
        run=chain,
        eager=lambda x, y: ((x * 2 + 1 + y) * 2 + 1 + y) * 0.5,
        inputs=vectors,
        kernels=0,
        launches=3,
    ),
    "an input overwritten": Case(
        run=overwritten_input, eager=lambda x, y: x.mul_(5) + y, inputs=vectors, kernels=1, launches=2
    ),
    "the old value read": Case(
        run=old_value, eager=lambda x, y: (x + 1) * 2.5 + (x + 1), inputs=vectors, kernels=2, launches=1
    ),
    "a slice of an input": Case(
        run=slice_of_input, eager=_slice_of_input, inputs=vectors, kernels=1, launches=1
    ),
    "slices": Case(run=slices, eager=_slices, inputs=matrices, kernels=1, launches=1),
    "parts of parts": Case(run=two_parts, eager=_two_parts, inputs=vectors, kernels=1, launches=3),
    "a product's layout": Case(
        run=product_operand,
        eager=lambda x, y: (x @ y) * 4,
        inputs=matrices,
        kernels=2,
        launches=2,
    ),
    "texts, types, None": Case(
        run=arguments, eager=lambda x, y: (-(x + y + 1) * 1.5, x * 2), inputs=vectors, kernels=0, launches=2
    ),
    "autotuned": Case(
        run=autotuned, eager=lambda x, y: ((x + 1) * 2, x + 2), inputs=vectors, kernels=1, launches=1
    ),
    "autotuned, open sizes": Case(
        run=autotuned,
        eager=lambda x, y: ((x + 1) * 2, x + 2),
        inputs=vectors,
        kernels=1,
        launches=1,
        dynamic=True,
    ),
    "pruned": Case(run=pruned, eager=lambda x, y: x + 1, inputs=vectors, kernels=2, launches=1),
    "heuristics": Case(run=by_heuristics, eager=lambda x, y: x + 1, inputs=vectors, kernels=0, launches=1),
    "an operator, trained": Case(run=operator_step, eager=_step, inputs=trained, kernels=4, launches=2),
    "an operator, trained, open sizes": Case(
        run=operator_step, eager=_step, inputs=trained, kernels=4, launches=2, dynamic=True
    ),
    "a function, trained": Case(run=function_step, eager=_step, inputs=trained, kernels=4, launches=2),
    "an empty grid": Case(run=empty_grid, eager=lambda x, y: x + 1, inputs=vectors, kernels=1, launches=1),
    "numbers from data": Case(
        run=numbers_from_data, eager=_numbers_from_data, inputs=vectors, kernels=3, launches=1
    ),
    "branches": Case(
        run=in_branches,
        eager=lambda x, y: torch.where(y.sum() > 0, (x + 1) * 2, (x + 1) * 3),
        inputs=vectors,
        kernels=3,
        launches=0,
    ),
    "a tensor descriptor": Case(
        run=described,
        eager=lambda x, y: (x + 1) * 2 + 1,
        inputs=lambda device: [torch.randn(32, 32, device=device) for _ in range(2)],
        kernels=2,
        launches=1,
        needs_gpu=True,
    ),
}


def check(case: Case, device: str, **options: Any) -> str:
    """Return what is wrong with results, gradients, inputs or the program; empty if nothing is."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = case.inputs(device)
    copies = [value.detach().clone().requires_grad_(value.requires_grad) for value in inputs]
    numbers = torch._dynamo.config.patch(capture_scalar_outputs=True)
    with tempfile.TemporaryDirectory() as folder, numbers:
        compiled = torch.compile(
            case.run,
            backend="coilwork",
            fullgraph=True,
            dynamic=case.dynamic,
            options={"strict": True, "verify": True, "trace": folder, **options},
        )
        try:
            for _ in range(2):
                _compare(compiled(*inputs), case.eager(*copies), inputs, copies)
        # the other cases are to be heard as well
        except Exception as error:  # noqa: BLE001
            return f"{type(error).__name__}: {error}"
        reports = [json.loads(path.read_text()) for path in Path(folder).glob("*/report.json")]
    kernels, calls = (sum(one[name] for one in reports) for name in ("kernels", "extern_calls"))
    if any(one["parts"] or one["fallback"] for one in reports):
        return "it is cut, or runs in eager mode"
    if kernels > case.kernels or calls < case.launches:
        return f"it has {kernels} kernels and {calls} calls"
    told = [row["count"] for one in reports for row in one["operators"] if row["reason"] == LAUNCH_REASON]
    return "" if sum(told) >= case.launches else f"it tells of {sum(told)} launches"


def _compare(got: Any, wanted: Any, inputs: Sequence[Tensor], copies: Sequence[Tensor]) -> None:
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(list(inputs), list(copies))
    if any(value.requires_grad for value in inputs):
        got.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close([x.grad for x in inputs], [x.grad for x in copies])


# ---- without a GPU ----


def stand_in_for_a_device() -> None:
    """Let torch capture launches where there is no GPU, and Triton's interpreter run them."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase
    from triton.runtime import driver

    class Described(DriverBase):
        def __init__(self) -> None:
            pass

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cpu")

        def map_python_to_cpp_type(self, name: str) -> str:
            return name

        def get_benchmarker(self) -> Callable[..., list[float]]:
            return lambda call, quantiles=None, **others: [0.0, 0.0, 0.0]

    driver.set_active(Described())
    torch.utils._triton.has_triton = lambda: True
    # kernels are captured as those for a device, whose functions are Triton's own
    os.environ["TRITON_INTERPRET"] = "1"


def check_cache() -> str:
    """Return what is wrong with a second compilation, in which torch numbers kernels otherwise."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    case = CASES["fused around"]
    with tempfile.TemporaryDirectory() as folder:
        for kernel in (twice, combine):
            torch._dynamo.reset()
            kernel_side_table.reset_table()
            kernel_side_table.add_kernel(kernel)
            compiled = torch.compile(case.run, backend="coilwork", options={"strict": True, "trace": folder})
            inputs = case.inputs("cpu")
            torch.testing.assert_close(compiled(*inputs), case.eager(*inputs))
        (report,) = Path(folder).glob("*/report.json")
        return "" if json.loads(report.read_text())["cache_hit"] else "it is compiled again"


DRIVERS: Final = {
    "in Python": {"executor": "python"},
    "in FX": {"wrapper": "fx"},
    "in C++": {"wrapper": "cpp"},
}


def main() -> None:
    stand_in_for_a_device()
    answers = {name: check(case, "cpu") for name, case in CASES.items() if not case.needs_gpu}
    answers |= {name: check(CASES["fused around"], "cpu", **options) for name, options in DRIVERS.items()}
    print(json.dumps({**answers, "from the cache": check_cache()}))


if __name__ == "__main__":
    main()
