"""The surface of a runtime for emitted code: the functions it calls besides kernels, and their error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch

Sizes = Sequence[int]

RUNTIME_MODULE: Final = "coilwork_runtime.generated"
"""Where a Python module finds them, unless told otherwise."""

FUNCTIONS: Final = (
    "check_rank",
    "check_layout",
    "check_aligned_layout",
    "empty_strided",
    "empty_strided_cpu",
    "empty_strided_cuda",
    "empty_pool",
    "pool_view",
    "reinterpret",
    "reinterpret_dtype",
    "ensure_layout",
    "ensure_aligned",
    "ensure_aligned_layout",
    "fork_stream",
    "join_stream",
    "record_event",
    "wait_event",
    "synchronize_event",
    "on_stream",
)
"""Those that the function `call` of a Python module uses. The rest of a module also uses `LayoutMemory`,
`CppKernel`, `TritonKernel`, `random_input` and `run_standalone`.
"""


class Surface(Protocol):
    """The functions that the nodes of an FX graph call. A module may be one: `coilwork_wrapper.layouts` is.

    Shapes and strides count elements. `stride` may differ from a tensor's along dimensions with fewer than
    two elements.
    """

    def check_rank(self, value: torch.Tensor, name: str, rank: int) -> None:
        """Refuse an input with another number of dimensions."""

    def check_layout(
        self, value: torch.Tensor, name: str, dtype: torch.dtype, device: str, size: Sizes, stride: Sizes
    ) -> None:
        """Refuse an input of another type, device, shape or strides."""

    def check_aligned_layout(
        self, value: torch.Tensor, name: str, dtype: torch.dtype, device: str, size: Sizes, stride: Sizes
    ) -> torch.Tensor:
        """Return the same, and a copy if the address is no multiple of 16 bytes."""
        ...

    def ensure_aligned(self, *values: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the same tensors; copies of those whose address is no multiple of 16 bytes."""
        ...

    def empty_strided(self, size: Sizes, stride: Sizes, dtype: torch.dtype, device: str) -> torch.Tensor:
        """Uninitialised memory."""
        ...

    def empty_pool(self, size_bytes: int, device: str) -> torch.Tensor:
        """Uninitialised bytes."""
        ...

    def pool_view(
        self, pool: torch.Tensor, offset_bytes: int, size: Sizes, stride: Sizes, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return a tensor inside of a pool."""
        ...

    def reinterpret(self, source: torch.Tensor, size: Sizes, stride: Sizes, offset: int) -> torch.Tensor:
        """Return the same memory under another layout."""
        ...

    def reinterpret_dtype(
        self, source: torch.Tensor, size: Sizes, stride: Sizes, dtype: torch.dtype, offset: int
    ) -> torch.Tensor:
        """Return the same memory as elements of another type."""
        ...

    def ensure_layout(
        self, value: torch.Tensor, size: Sizes, stride: Sizes, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return an operator's result in the declared layout."""
        ...

    def ensure_aligned_layout(
        self, value: torch.Tensor, size: Sizes, stride: Sizes, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return an operator's result in the declared layout, at a multiple of 16 bytes."""
        ...

    def fork_stream(self, device: str, after: torch.Stream | None = None) -> torch.Stream | None:
        """Return a stream behind all that `after` was given; None, here and below, is the call's own, or
        none.
        """
        ...

    def join_stream(self, stream: torch.Stream | None, into: torch.Stream | None = None) -> None:
        """Let work that is put on `into` from now on wait for all of `stream`."""

    def record_event(self, device: str, stream: torch.Stream | None = None) -> torch.Event | None:
        """Return an event behind all that `stream`, of `device`, was given so far."""
        ...

    def wait_event(self, event: torch.Event | None, stream: torch.Stream | None = None) -> None:
        """Let work that is put on `stream` from now on wait for `event`."""

    def synchronize_event(self, event: torch.Event | None) -> None:
        """Return when `event` is reached."""

    def on_stream(
        self, stream: torch.Stream | None, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call `function`, with what it does put on `stream`."""


class LayoutError(RuntimeError):
    """A tensor has another element type, device, shape or stride than the program was planned for.

    `code` is stable: `input-layout`, `operator-shape`, `operator-dtype` or `misaligned`.
    """

    def __init__(self, code: str, what: str, *, remedy: str = "") -> None:
        self.code = code
        self.what = what
        super().__init__(f"LayoutError[{code}]: {what}" + (f"\n  try     {remedy}" if remedy else ""))
