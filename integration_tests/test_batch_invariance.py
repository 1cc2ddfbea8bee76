"""`batch_invariant=True`: a row's bits do not depend on the rows beside it; C++ on the CPU, and Triton's
kernels interpreted.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from coilwork.backend import backend
from integration_tests.batch_invariance import CASES, Case, differences
from integration_tests.interpreting import answers_of

BATCHES = (1000, 64, 7, 3, 2, 1)
# Of what takes long.
FEWER = {"long rows": (9, 3, 1), "gpt2 block": (1000, 7, 1)}
# The interpreter takes a second for some dozen programs, and each row is one.
INTERPRETED: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("softmax", "float32", (64, 7, 2, 1)),
    ("layer-norm", "bfloat16", (24, 3, 1)),
    ("rms-norm", "float32", (24, 3, 1)),
    ("log-sum-exp", "float32", (24, 3, 1)),
    ("cross-entropy", "float32", (7, 2, 1)),
    ("columns", "float32", (24, 3, 1)),
    ("long rows", "float32", (3, 2, 1)),
    ("attention", "float32", (3, 2, 1)),
    ("product", "float32", (70, 7, 2, 1)),
    ("product", "bfloat16", (70, 7, 2, 1)),
    ("mlp", "float32", (7, 3, 1)),
    ("gpt2 block", "float32", (3, 1)),
)
MULTIPLYING = ("attention", "product", "mlp", "gpt2 block")


WIDE = ("attention", "product", "mlp")
ROUNDED = ("softmax", "layer-norm", "product", "mlp", "gpt2 block")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in CASES),
        *((name, torch.bfloat16) for name in ROUNDED),
        *((name, torch.float64) for name in WIDE),
    ],
)
def test_cpu_rows_do_not_depend_on_the_batch(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COILWORK_STRICT", "1")
    with torch.no_grad():
        assert differences(CASES[name], dtype, FEWER.get(name, BATCHES)) == []


@pytest.mark.interpreter
@pytest.mark.slow
def test_triton_rows_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    alike = _numpy_multiplies_rows_alike()
    cases = [case for case in INTERPRETED if alike or case[0] not in MULTIPLYING]
    found = answers_of("integration_tests.batch_invariance", tmp_path, BATCH_CASES=json.dumps(cases))
    assert found == {f"{name} {dtype}": "" for name, dtype, _ in cases}


def _numpy_multiplies_rows_alike() -> bool:
    """Whether numpy, which multiplies for the interpreter, gives a row's bits wherever in a block it is, on
    this processor.
    """
    generator = np.random.default_rng(0)
    for rows in (16, 32, 64, 128):
        x, w = (generator.standard_normal(shape, np.float32) for shape in ((rows, 64), (64, 64)))
        product = x @ w
        if any(not np.array_equal(np.roll(x, k, 0) @ w, np.roll(product, k, 0)) for k in range(1, rows)):
            return False
    return True


def test_a_mean_over_the_batch_is_detected() -> None:
    def centred(x: Tensor) -> Tensor:
        return x - x.mean(0)

    assert differences(Case(run=centred, width=8), torch.float32, (4, 1))


def test_products_of_f64_agree() -> None:
    def products(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        batches = torch.baddbmm(b, x.expand(2, *x.shape), w.expand(2, *w.shape), beta=0.5, alpha=2)
        return torch.addmm(b, x, w, beta=0), batches, torch.addmv(b, x, w[:, 0]), x @ w[:, 1], w[:, 1] @ w

    given = [torch.randn(shape, dtype=torch.float64) for shape in ((5, 7), (7, 5), (5,))]
    compiled = torch.compile(products, backend=backend, options={"batch_invariant": True, "strict": True})
    torch.testing.assert_close(compiled(*given), products(*given), check_stride=True)


def test_an_operator_without_the_promise_is_an_error_with_its_line() -> None:
    def convolved(x: Tensor) -> Tensor:
        return torch.nn.functional.conv1d(x, torch.ones(1, 2, 3))

    # also without strict=True: eager in its place would break the promise as well
    compiled = torch.compile(convolved, backend=backend, options={"batch_invariant": True})
    named = r"BatchVariantError\[batch-variant\]: aten\.convolution[\s\S]*test_batch_invariance\.py"
    with pytest.raises(Exception, match=named):
        compiled(torch.randn(3, 2, 8))
