"""The first call of a compiled graph, during which torch 2.13 looks at what custom operators return.

AOTAutograd enters a `TorchDispatchMode` for that. What runs in such a mode runs without the dispatch keys
above Python's, those of lazy conjugation and negation among them, so an operator that conjugates a view
inside reads it as it lies in memory. `torch.linalg.pinv` of a complex matrix is wrong then, under `aot_eager`
too, and right in every call that follows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import torch
from torch._functorch._aot_autograd import runtime_wrappers
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _pop_mode_temporarily,
)

# None in versions that look at no operator.
_CHECK: Final[type[TorchDispatchMode] | None] = getattr(
    runtime_wrappers, "_AnalyzeCustomOpInputOutputMode", None
)
_LAZY: Final = (
    torch._C.DispatchKey.Conjugate,
    torch._C.DispatchKey.Negative,
    torch._C.DispatchKey.ZeroTensor,
)
_BUILT_IN: Final = ("aten", "prim", "prims")


class FirstCall:
    """A compiled graph that conjugates lazily in its first call, too; custom operators are still checked."""

    _boxed_call = True

    def __init__(self, call: Callable[[list[Any]], Any]) -> None:
        self._call = call
        self._is_first = True

    def __call__(self, args: list[Any]) -> Any:
        if not self._is_first:
            return self._call(args)
        self._is_first = False
        with ExitStack() as stack:
            mode = _get_current_dispatch_mode()
            if _CHECK is not None and isinstance(mode, _CHECK):
                stack.enter_context(_pop_mode_temporarily())
                stack.enter_context(_LazyBuiltIns(mode))
            return self._call(args)


class _LazyBuiltIns(TorchDispatchMode):
    """Calls torch's own operators with lazy views, and leaves others to `check`."""

    def __init__(self, check: TorchDispatchMode) -> None:
        initialize: Callable[[], None] = super().__init__  # the base class is not typed
        initialize()
        self.supports_higher_order_operators = True
        self._check = check

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "namespace", None) not in _BUILT_IN:
            return self._check.__torch_dispatch__(func, types, args, kwargs)
        excluded = torch._C._dispatch_tls_local_exclude_set()
        for key in _LAZY:
            excluded = excluded.remove(key)
        with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
            return func(*args, **(kwargs or {}))

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


def has_conjugates(gm: torch.fx.GraphModule) -> bool:
    """Tell if a value of `gm` is complex: no other graph has lazy views."""
    values = (node.meta.get("val") for node in gm.graph.nodes)
    return any(
        isinstance(leaf, torch.Tensor) and leaf.dtype.is_complex
        for value in values
        for leaf in torch.utils._pytree.tree_leaves(value)
    )
