"""The full stack: after `pip install coilwork`, the backend's name is all that a program needs to say."""

from __future__ import annotations

import warnings

import torch


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 8)
    )
    x = torch.randn(16, 64)
    expected = torch.nn.functional.softmax(model.double()(x.double()), dim=-1)
    model.float()

    print("registered:", "coilwork" in torch.compiler.list_backends())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = torch.compile(lambda inputs: model(inputs).softmax(dim=-1), backend="coilwork")
        result = compiled(x)
        result.square().sum().backward()
    print("close to float64:", torch.allclose(result.double(), expected, atol=1e-6))
    print("gradients:", all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters()))
    # A fallback to eager would be right too, but it warns.
    print("fallbacks:", [str(w.message) for w in caught if w.category.__module__.startswith("coilwork")])


main()
