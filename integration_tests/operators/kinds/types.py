"""Types that operators of two operands do not take, that what is overwritten cannot hold, and that positions
do not have; and tensors to write to that are of another type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from integration_tests.operators.kinds.call import FLAGS, MATRIX, NUMBERS, PLANE, SQUARE, BadCall, integers


def list_overwriting_calls() -> Iterator[tuple[str, BadCall]]:
    """Results that the type of what is overwritten cannot hold."""
    for name in ("add_", "sub_", "mul_", "pow_", "fmod_", "remainder_", "floor_divide_"):
        for held, other in (
            (torch.int32, 1.5),
            (torch.bool, 2),
            (torch.int64, torch.ones(4, 6)),
            (torch.uint8, torch.ones(4, 6, dtype=torch.complex64)),
            (torch.float32, torch.ones(4, 6, dtype=torch.complex64)),
            (torch.bool, torch.ones(4, 6, dtype=torch.bool)),
            (torch.bool, torch.ones(4, 6, dtype=torch.int32)),
            (torch.uint8, 300),
            (torch.uint8, -1),
            (torch.int8, 2**40),
            (torch.int64, 2**63),
            (torch.float32, 1j),
        ):
            x = NUMBERS.to(held)
            if isinstance(other, Tensor):
                yield (
                    f"{name} {held} by {other.dtype}",
                    BadCall(lambda x, y, name=name: getattr(x.clone(), name)(y), (x, other)),
                )
                yield (
                    f"{name} input {held} by {other.dtype}",
                    BadCall(lambda x, y, name=name: getattr(x, name)(y), (x, other)),
                )
            else:
                yield (
                    f"{name} {held} by {other}",
                    BadCall(lambda x, y=other, name=name: getattr(x.clone(), name)(y), (x,)),
                )
    for name in (
        "div_",
        "true_divide_",
        "exp_",
        "sqrt_",
        "sigmoid_",
        "sin_",
        "log_",
        "reciprocal_",
        "tanh_",
        "erf_",
        "rsqrt_",
        "floor_",
        "clamp_",
        "lerp_",
        "copysign_",
        "atan2_",
        "hypot_",
        "float_power_",
        "logit_",
        "nan_to_num_",
        "relu_",
        "sinc_",
        "i0_",
        "digamma_",
        "mvlgamma_",
        "xlogy_",
        "ldexp_",
        "neg_",
        "abs_",
        "sign_",
        "round_",
        "trunc_",
        "frac_",
        "gcd_",
        "bitwise_and_",
        "bitwise_left_shift_",
        "logical_not_",
        "cumsum_",
        "cumprod_",
        "addcmul_",
        "addcdiv_",
        "igamma_",
        "heaviside_",
        "nextafter_",
        "tril_",
        "square_",
        "random_",
        "uniform_",
        "normal_",
        "bernoulli_",
        "exponential_",
        "geometric_",
        "fill_diagonal_",
    ):
        for held in (torch.int32, torch.bool, torch.uint8, torch.complex64, torch.float32):
            x = NUMBERS.to(held)
            more: dict[str, tuple[Any, ...]] = {
                "div_": (2,),
                "true_divide_": (2,),
                "clamp_": (0.5, 1.5),
                "lerp_": (x, 0.5),
                "copysign_": (x,),
                "atan2_": (x,),
                "hypot_": (x,),
                "float_power_": (2,),
                "mvlgamma_": (1,),
                "xlogy_": (x,),
                "ldexp_": (x,),
                "gcd_": (x,),
                "bitwise_and_": (x,),
                "bitwise_left_shift_": (x,),
                "cumsum_": (0,),
                "cumprod_": (0,),
                "addcmul_": (x, x),
                "addcdiv_": (x, x),
                "igamma_": (x,),
                "heaviside_": (x,),
                "nextafter_": (x,),
                "geometric_": (0.5,),
                "fill_diagonal_": (1.5,),
            }
            given = more.get(name, ())
            yield (
                f"{name} of {held}",
                BadCall(lambda x, *y, name=name: getattr(x.clone(), name)(*y), (x, *given)),
            )
            kept = name.rstrip("_")
            yield (
                f"{kept} of {held}",
                BadCall(lambda x, *y, name=kept: getattr(x.clone(), name)(*y), (x, *given)),
            )


def list_position_calls() -> Iterator[tuple[str, BadCall]]:
    """Positions of types that eager does not take, and of other ranks."""
    for dtype in (
        torch.int8,
        torch.int16,
        torch.uint8,
        torch.uint16,
        torch.int32,
        torch.float32,
        torch.bool,
        torch.complex64,
    ):
        k = integers(0, 1).to(dtype)
        calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
            "gather": (lambda x, k: (x * 2).gather(1, k[None]) + 1, (MATRIX, k)),
            "scatter": (lambda x, k: (x * 2).scatter(1, k[None], 1.0) + 1, (MATRIX, k)),
            "scatter of a source": (lambda x, k: (x * 2).scatter(1, k[None], x) + 1, (MATRIX, k)),
            "scatter_add": (lambda x, k: (x * 2).scatter_add(1, k[None], x) + 1, (MATRIX, k)),
            "scatter_reduce": (lambda x, k: (x * 2).scatter_reduce(1, k[None], x, "sum") + 1, (MATRIX, k)),
            "index_select": (lambda x, k: (x * 2).index_select(1, k) + 1, (MATRIX, k)),
            "index_add": (lambda x, k: (x * 2).index_add(0, k, x[:2]) + 1, (MATRIX, k)),
            "index_copy": (lambda x, k: (x * 2).index_copy(0, k, x[:2]) + 1, (MATRIX, k)),
            "index_fill": (lambda x, k: (x * 2).index_fill(0, k, 1.0) + 1, (MATRIX, k)),
            "index_reduce": (lambda x, k: (x * 2).index_reduce(0, k, x[:2], "prod") + 1, (MATRIX, k)),
            "take": (lambda x, k: (x * 2).take(k) + 1, (MATRIX, k)),
            "put": (lambda x, k: (x * 2).put(k, x[0, :2]) + 1, (MATRIX, k)),
            "take_along_dim": (lambda x, k: (x * 2).take_along_dim(k[None], 1) + 1, (MATRIX, k)),
            "subscript": (lambda x, k: (x * 2)[k] + 1, (MATRIX, k)),
            "assignment": (lambda x, k: _assigned(x * 2, k), (MATRIX, k)),
            "index_put": (lambda x, k: (x * 2).index_put((k,), x[0, 0]) + 1, (MATRIX, k)),
            "embedding": (lambda x, k: F.embedding(k, x * 2) + 1, (MATRIX, k)),
            "embedding_bag": (lambda x, k: F.embedding_bag(k[None], x * 2) + 1, (MATRIX, k)),
            "one_hot": (lambda x, k: F.one_hot(k, 4) + 1, (MATRIX, k)),
            "cross_entropy": (lambda x, k: F.cross_entropy(x[:2] * 2, k), (MATRIX, k)),
            "nll_loss": (lambda x, k: F.nll_loss(x[:2] * 2, k), (MATRIX, k)),
            "multi_margin_loss": (lambda x, k: F.multi_margin_loss(x[:2] * 2, k), (MATRIX, k)),
            "bincount": (lambda x, k: torch.bincount(k) + 1, (MATRIX, k)),
            "searchsorted": (lambda x, k: torch.searchsorted(x[0] * 2, x[1], sorter=k), (MATRIX, k)),
            "unravel_index": (lambda x, k: torch.unravel_index(k, (4, 6)), (MATRIX, k)),
            "repeat_interleave": (lambda x, k: torch.repeat_interleave(x[:2] * 2, k, 0), (MATRIX, k)),
            "tensor_split": (lambda x, k: torch.tensor_split(x * 2, k), (MATRIX, k)),
            "bitwise shift": (lambda x, k: k << x.to(torch.int32)[0, 0], (MATRIX, k)),
            "a slice by it": (lambda x, k: x[k[0] :] + 1, (MATRIX, k)),
            "segment_reduce": (lambda x, k: torch.segment_reduce(x[:, 0] * 2, "sum", lengths=k), (MATRIX, k)),
            "where": (lambda x, k: torch.where(k, x[0, :2], 0.0) + 1, (MATRIX, k)),
            "masked_fill": (lambda x, k: x[:, :2].masked_fill(k, 0.0) + 1, (MATRIX, k)),
            "masked_select": (lambda x, k: x[:, :2].masked_select(k) + 1, (MATRIX, k)),
            "masked_scatter": (lambda x, k: x[:, :2].clone().masked_scatter(k, x) + 1, (MATRIX, k)),
        }
        for name, (function, given) in calls.items():
            yield f"{name} by {dtype}", BadCall(function, given)


def _assigned(x: Tensor, k: Tensor) -> Tensor:
    x[k] = 3.0
    return x + 1


def list_pair_calls() -> Iterator[tuple[str, BadCall]]:
    """Types that operators of two operands do not take."""
    operators: dict[str, Callable[..., Any]] = {
        "-": lambda a, b: a - b,
        "rsub": torch.rsub,
        "%": lambda a, b: a % b,
        "//": lambda a, b: a // b,
        "**": lambda a, b: a**b,
        "<": lambda a, b: a < b,
        "&": lambda a, b: a & b,
        "|": lambda a, b: a | b,
        "^": lambda a, b: a ^ b,
        "<<": lambda a, b: a << b,
        ">>": lambda a, b: a >> b,
        "@": lambda a, b: a @ b.t(),
        "maximum": torch.maximum,
        "fmin": torch.fmin,
        "clamp": lambda a, b: torch.clamp(a, b),
        "atan2": torch.atan2,
        "hypot": torch.hypot,
        "copysign": torch.copysign,
        "nextafter": torch.nextafter,
        "gcd": torch.gcd,
        "lcm": torch.lcm,
        "heaviside": torch.heaviside,
        "igamma": torch.igamma,
        "zeta": torch.special.zeta,
        "xlogy": torch.xlogy,
        "logaddexp": torch.logaddexp,
        "logaddexp2": torch.logaddexp2,
        "ldexp": torch.ldexp,
        "fmod": torch.fmod,
        "floor_divide": torch.floor_divide,
        "dist": torch.dist,
        "cdist": torch.cdist,
        "outer": lambda a, b: torch.outer(a[0], b[0]),
        "lerp": lambda a, b: torch.lerp(a, b, 0.5),
        "addcmul": lambda a, b: torch.addcmul(a, b, b, value=2),
        "addcdiv": lambda a, b: torch.addcdiv(a, b, b),
        "where": lambda a, b: torch.where(a, b, b),
        "mse_loss": F.mse_loss,
        "l1_loss": F.l1_loss,
        "smooth_l1_loss": F.smooth_l1_loss,
        "huber_loss": F.huber_loss,
        "kl_div": F.kl_div,
        "binary_cross_entropy": F.binary_cross_entropy,
        "bce with logits": F.binary_cross_entropy_with_logits,
        "cosine_similarity": F.cosine_similarity,
        "poisson_nll_loss": F.poisson_nll_loss,
        "soft_margin_loss": F.soft_margin_loss,
        "hinge_embedding_loss": F.hinge_embedding_loss,
        "linear": F.linear,
        "prelu": lambda a, b: F.prelu(a, b[0]),
        "isclose": torch.isclose,
        "allclose": torch.allclose,
        "equal": torch.equal,
        "complex": torch.complex,
        "polar": torch.polar,
        "cross": lambda a, b: torch.linalg.cross(a[:, :3], b[:, :3]),
        "kron": torch.kron,
        "tensordot": lambda a, b: torch.tensordot(a, b.t(), 1),
        "addmm": lambda a, b: torch.addmm(a[0, 0], a, b.t()),
        "baddbmm": lambda a, b: torch.baddbmm(a[0, 0], a[None], b.t()[None]),
        "layer_norm": lambda a, b: F.layer_norm(a, (6,), b[0]),
        "rms_norm": lambda a, b: F.rms_norm(a, (6,), b[0]),
        "batch_norm": lambda a, b: F.batch_norm(a, b[0], b[0]),
        "conv1d": lambda a, b: F.conv1d(a[None], b[None, :, :2]),
        "attention": lambda a, b: F.scaled_dot_product_attention(a[None], b[None], b[None]),
        "cat out": lambda a, b: torch.cat([a, b], out=b),
        "searchsorted": lambda a, b: torch.searchsorted(a[0], b[0]),
        "isin": torch.isin,
        "grid_sample": lambda a, b: F.grid_sample(a[None, None], b[None, :2, None, :2], align_corners=False),
        "vdot": lambda a, b: torch.vdot(a[0], b[0]),
        "index_add": lambda a, b: a.index_add(0, integers(0, 1, 2, 3), b),
        "scatter": lambda a, b: a.scatter(0, torch.zeros(4, 6, dtype=torch.int64), b),
        "copysign in place": lambda a, b: a.clone().copysign_(b),
        "masked_scatter": lambda a, b: a.masked_scatter(a == a, b),
        "index_put": lambda a, b: a.index_put((integers(0, 1, 2, 3),), b),
        "pow in place": lambda a, b: a.clone().pow_(b),
    }
    bools, ints, floats, complexes, halves, short = (
        FLAGS,
        NUMBERS,
        MATRIX,
        MATRIX.to(torch.complex64),
        MATRIX.half(),
        NUMBERS.to(torch.uint16),
    )
    pairs = {
        "bool, bool": (bools, bools),
        "int, int": (ints, ints),
        "complex, complex": (complexes, complexes),
        "float, complex": (floats, complexes),
        "float, int": (floats, ints),
        "int, float": (ints, floats),
        "float, half": (floats, halves),
        "float, double": (floats, floats.double()),
        "float, bool": (floats, bools),
        "uint16, uint16": (short, short),
        "int, uint16": (ints, short),
        "float, float8": (floats, floats.to(torch.float8_e5m2)),
        "float, meta": (floats, floats.to("meta")),
        "meta, float": (floats.to("meta"), floats),
        "uint32, int64": (ints.to(torch.uint32), ints),
        "uint64, int64": (ints.to(torch.uint64), ints),
    }
    for name, function in operators.items():
        for kinds, given in pairs.items():
            yield f"{name} of {kinds}", BadCall(function, given)


def list_output_calls() -> Iterator[tuple[str, BadCall]]:
    """Tensors to write to that are of other types, shapes, devices or memory."""
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "add": (torch.add, (MATRIX, MATRIX)),
        "mul": (torch.mul, (MATRIX, 2)),
        "sin": (torch.sin, (MATRIX,)),
        "mm": (torch.mm, (SQUARE, SQUARE)),
        "sum": (lambda x, out: torch.sum(x, (0,), out=out), (MATRIX,)),
        "amax": (lambda x, out: torch.amax(x, 0, out=out), (MATRIX,)),
        "argmax": (lambda x, out: torch.argmax(x, 0, out=out), (MATRIX,)),
        "cat": (lambda x, y, out: torch.cat([x, y], out=out), (MATRIX, MATRIX)),
        "stack": (lambda x, y, out: torch.stack([x, y], out=out), (MATRIX, MATRIX)),
        "cumsum": (lambda x, out: torch.cumsum(x, 0, out=out), (MATRIX,)),
        "gather": (lambda x, k, out: torch.gather(x, 0, k, out=out), (MATRIX, NUMBERS % 4)),
        "index_select": (lambda x, k, out: torch.index_select(x, 0, k, out=out), (MATRIX, integers(0, 1))),
        "where": (lambda c, x, out: torch.where(c, x, x, out=out), (FLAGS, MATRIX)),
        "eq": (torch.eq, (MATRIX, MATRIX)),
        "div": (lambda x, out: torch.div(x, 2, rounding_mode="floor", out=out), (MATRIX,)),
        "clamp": (lambda x, out: torch.clamp(x, 0, 1, out=out), (MATRIX,)),
        "arange": (lambda x, out: torch.arange(x.shape[0], out=out), (MATRIX,)),
        "softmax": (lambda x, out: torch._C._nn.softplus(x, out=out), (MATRIX,)),
        "tril": (torch.tril, (MATRIX,)),
        "norm": (lambda x, out: torch.linalg.vector_norm(x, out=out), (MATRIX,)),
        "matmul": (torch.matmul, (SQUARE, SQUARE)),
        "addmm": (torch.addmm, (SQUARE, SQUARE, SQUARE)),
        "real logical_not": (torch.logical_not, (MATRIX,)),
        "prod": (lambda x, out: torch.prod(x, 0, out=out), (MATRIX,)),
        "round": (torch.round, (MATRIX,)),
        "pow": (lambda x, out: torch.pow(x, 2.0, out=out), (NUMBERS,)),
        "bitwise_and": (torch.bitwise_and, (NUMBERS, NUMBERS)),
        "remainder": (lambda x, out: torch.remainder(x, 2.0, out=out), (MATRIX,)),
        "take": (lambda x, k, out: torch.take(x, k, out=out), (MATRIX, NUMBERS)),
        "normal": (lambda x, out: torch.normal(x, 1.0, out=out), (MATRIX,)),
        "randn": (lambda x, out: torch.randn(4, 6, out=out), (MATRIX,)),
        "full": (lambda x, out: torch.full((4, 6), 1.5, out=out), (MATRIX,)),
        "zeros": (lambda x, out: torch.zeros(4, 6, out=out), (MATRIX,)),
        "avg_pool2d": (lambda x, out: torch._C._nn.avg_pool2d(x, 2, out=out), (PLANE,)),
    }
    for name, (function, given) in calls.items():
        result = function(*given, out=None) if name != "softmax" else torch._C._nn.softplus(*given)
        outs = {
            "of integers": torch.empty(result.shape, dtype=torch.int32),
            "of truth values": torch.empty(result.shape, dtype=torch.bool),
            "of complex numbers": torch.empty(result.shape, dtype=torch.complex64),
            "of halves": torch.empty(result.shape, dtype=torch.float16),
            "of doubles": torch.empty(result.shape, dtype=torch.float64),
            "on no device": torch.empty(result.shape, dtype=result.dtype, device="meta"),
            "expanded": torch.empty((), dtype=result.dtype).expand(result.shape),
            "with gradients": torch.empty(result.shape).requires_grad_(),
            "none": 3,
        }
        for what, out in outs.items():
            yield (
                f"out of {name} {what}",
                BadCall(
                    lambda *given, function=function: function(*given[:-1], out=given[-1]), (*given, out)
                ),
            )
