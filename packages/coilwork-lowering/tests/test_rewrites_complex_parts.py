"""Complex numbers as pairs: what is computed in real parts, what stays ATen's, and that values
are eager's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rewritten_graphs import TABLE, Rewritten
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering.rewrites import apply_rewrites
from coilwork_lowering.rewrites.clean_up import drop_dead_code_in
from coilwork_lowering.rewrites.complex_parts import COMPLEX_PARTS
from coilwork_lowering.torch_compat.sizes import find_shape_env, guard_count

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")
SPECIAL = torch.complex(
    torch.tensor([[INF, 1.0, NAN, -0.0], [0.0, 3.0, -INF, 2.0]]),
    torch.tensor([[1.0, -INF, 2.0, 0.0], [-0.0, -4.0, INF, 0.5]]),
)
OTHER = torch.complex(
    torch.tensor([[2.0, -0.0, 1.0, INF], [1.0, -1.0, NAN, 0.0]]),
    torch.tensor([[0.0, 1.0, -1.0, 2.0], [-0.0, 0.25, 1.0, -3.0]]),
)
REAL = torch.tensor([[2.0, -0.0, INF, NAN], [0.0, 0.5, -1.0, 3.0]])
Binary = Callable[[Tensor, Tensor], Tensor]


def parts(z: Tensor) -> Tensor:
    return torch.view_as_real(z)


def by_parts(
    function: Callable[..., Any], operands: tuple[Tensor, ...], *, device: str = "cuda"
) -> Rewritten:
    """The graph of `function` for `device`, rewritten, and compared with eager's results: on a CPU, whatever
    the device.
    """
    with FakeTensorMode():
        given = [
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=device) for one in operands
        ]
        gm = make_fx(function, decomposition_table=TABLE)(*given)
    made = Rewritten(gm, apply_rewrites(gm, COMPLEX_PARTS))
    gm.graph.lint()
    # eager's vectors round one product of a sum of two less
    torch.testing.assert_close(
        gm(*operands), function(*operands), equal_nan=True, check_stride=True, rtol=2e-6, atol=1e-6
    )
    return made


FIRES: dict[str, tuple[str, Binary, tuple[Tensor, Tensor]]] = {
    "product": ("parts-of-product", lambda x, y: parts(x * y), (SPECIAL, OTHER)),
    "square": ("parts-of-product", lambda x, y: parts(x * x), (SPECIAL, OTHER)),
    "broadcast": ("parts-of-product", lambda x, y: parts(x * y), (SPECIAL, OTHER[:1])),
    "transposed": ("parts-of-product", lambda x, y: parts(x.t() * y.t()), (SPECIAL, OTHER)),
    "by real numbers": ("parts-of-product", lambda x, y: parts(x * y), (SPECIAL, REAL)),
    "of real numbers": ("parts-of-product", lambda x, y: parts(x * y), (REAL, SPECIAL)),
    "by a number": ("parts-of-product", lambda x, y: parts(x * 2.5), (SPECIAL, OTHER)),
    "by a conjugate": ("parts-of-product", lambda x, y: parts(x * y.conj()), (SPECIAL, OTHER)),
    "by a transposed conjugate": (
        "parts-of-product",
        lambda x, y: parts(x.t() * y.conj().t()),
        (SPECIAL, OTHER),
    ),
    "in 64 bits": (
        "parts-of-product",
        lambda x, y: parts(x * y),
        (SPECIAL.to(torch.complex128), OTHER.to(torch.complex128)),
    ),
    "rolled": ("parts-of-rolled", lambda x, y: parts(x.roll((1, -1), (-2, -1))), (SPECIAL, OTHER)),
    "rolled along one": ("parts-of-rolled", lambda x, y: parts(x.roll(2, -1)), (SPECIAL, OTHER)),
    "in reverse": ("parts-of-flipped", lambda x, y: parts(x.flip(-1)), (SPECIAL, OTHER)),
    "conjugate": ("parts-of-conjugate", lambda x, y: parts(x.conj().clone()), (SPECIAL, OTHER)),
    "conjugate in memory": (
        "parts-of-conjugate",
        lambda x, y: parts(aten._conj_physical(x)),
        (SPECIAL, OTHER),
    ),
    "made of parts": ("parts-of-complex", lambda x, y: parts(torch.complex(x, y)), (REAL, REAL + 1)),
    "made of pairs": (
        "parts-of-pairs",
        lambda x, y: parts(torch.view_as_complex(x)) + 1,
        (torch.randn(3, 2), REAL),
    ),
    "pairs of parts": (
        "pairs-of-parts",
        lambda x, y: torch.view_as_complex(parts(x)) * y,
        (SPECIAL, OTHER),
    ),
    "viewed": ("parts-of-view", lambda x, y: parts((x * y).view(4, 2)).sin(), (SPECIAL, OTHER)),
    "unsqueezed": ("parts-of-unsqueezed", lambda x, y: parts((x * y).unsqueeze(-1)).sin(), (SPECIAL, OTHER)),
    "transposed back": (
        "parts-of-transposed",
        lambda x, y: parts((x * y).transpose(0, -1)).sin(),
        (SPECIAL, OTHER),
    ),
}


@pytest.mark.parametrize("case", FIRES)
def test_parts_are_eagers(case: str) -> None:
    name, function, operands = FIRES[case]
    made = by_parts(function, operands)
    assert name in made.names


CLOSE: dict[str, tuple[str, Callable[[Tensor], Tensor], Tensor]] = {
    "magnitude": ("magnitude", lambda x: x.abs(), SPECIAL),
    "angle": ("angle", lambda x: x.angle(), SPECIAL),
    "spectrum": ("magnitude", lambda x: torch.fft.rfft(x).abs(), torch.randn(3, 16)),
    "polar": ("parts-of-polar", lambda x: parts(torch.polar(x, x)), torch.randn(3, 16)),
}


@pytest.mark.parametrize("case", CLOSE)
def test_functions_of_parts(case: str) -> None:
    name, function, operand = CLOSE[case]
    made = by_parts(function, (operand,), device="cpu")
    assert name in made.names


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """A rotary embedding as models with complex rotations write it."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return parts(pairs * rotation).flatten(3).type_as(x)


def test_a_rotation_has_no_complex_values() -> None:
    x, rotation = torch.randn(2, 5, 3, 8), torch.randn(1, 5, 1, 4, dtype=torch.complex64)
    made = by_parts(rotated, (x, rotation))
    drop_dead_code_in(made.gm.graph)
    values = [node.meta["val"] for node in made.gm.graph.nodes if node.op == "call_function"]
    assert not [value for value in values if value.is_complex()]


STAYS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "read as it is, too": lambda x, y: ((z := x * y), parts(z) + 1),
    "of two types": lambda x, y: parts(x * y.to(torch.complex128)),
    "a sum, in which eager multiplies by 1 + 0j": lambda x, y: parts(x + y),
    "magnitude of real numbers": lambda x, y: x.real.abs(),
    "magnitude that is looked for": lambda x, y: (
        x.abs() == torch.linalg.vector_norm(x, float("inf"), 1, True)
    ),
    "by a complex number": lambda x, y: parts(x * 2j),
}


@pytest.mark.parametrize("case", STAYS)
def test_complex_values_that_are_needed_whole_stay(case: str) -> None:
    assert by_parts(STAYS[case], (SPECIAL, OTHER)).names == ()


ON_A_CPU: dict[str, tuple[Binary, bool]] = {
    "rows": (lambda x, y: parts(x * y), True),
    "one row": (lambda x, y: parts(x * y[:1]), True),
    "a conjugate": (lambda x, y: parts(x * y.conj()), True),
    "one column": (lambda x, y: parts(x * y[:, :1].conj()), False),
    "columns": (lambda x, y: parts(x.t() * y.t()), False),
    "rows by columns": (lambda x, y: parts(x[:, :2] * y[:, :2].t()), False),
}


@pytest.mark.parametrize("case", ON_A_CPU)
def test_a_cpus_products_are_of_rows(case: str) -> None:
    function, fires = ON_A_CPU[case]
    made = by_parts(function, (SPECIAL, OTHER), device="cpu")
    assert made.names == (("parts-of-product",) if fires else ())


def test_a_cpus_products_of_unknown_sizes_are_atens() -> None:
    gm = make_fx(lambda x, y: parts(x * y), tracing_mode="symbolic")(SPECIAL, OTHER)
    assert Rewritten(gm, apply_rewrites(gm, COMPLEX_PARTS)).names == ()


def test_sizes_that_are_not_known_are_not_asked_for() -> None:
    x = torch.randn(2, 5, 4, 6, 2)
    gm = make_fx(lambda x: torch.view_as_complex(x).transpose(1, 2).abs(), tracing_mode="symbolic")(x)
    environment = find_shape_env(gm)
    assert environment is not None
    before = guard_count(environment)
    apply_rewrites(gm, COMPLEX_PARTS)
    assert guard_count(environment) == before
