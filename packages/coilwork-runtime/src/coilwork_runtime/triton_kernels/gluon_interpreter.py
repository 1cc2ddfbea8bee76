"""Run kernels in Gluon, Triton's dialect, in Triton's interpreter, which knows Triton alone.

Layouts mean nothing here. The roles of a program's warps are threads that run one at a time, each until it
waits at a barrier that is not through; if all of them do, `DeadlockError` says so. A product is computed when
it is waited for, as late as hardware may, so that a stage that is overwritten too early shows in results.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any


class DeadlockError(Exception):
    """Every role of a program's warps waits for another."""


def interpret_gluon(function: Any) -> Any:
    """Return `function`, the entry of a kernel's text, as one that Triton interprets. Functions that are in
    Gluon are replaced in the text's namespace, and so is what they use.
    """
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    if not isinstance(function, JITFunction):
        return function
    namespace = function.fn.__globals__
    for name, one in tuple(namespace.items()):
        if isinstance(one, JITFunction):
            namespace[name] = InterpretedFunction(one.fn)
    namespace |= _make_modules()
    return namespace[function.fn.__name__]


# ---- roles ----


class _AbandonedError(BaseException):
    """Ends a role that would wait for ever."""


@dataclass(slots=True)
class _Role:
    """A role: what it waits for, whether it is done, and has returned, and its turn to run."""

    is_through: Callable[[], bool] | None = None
    is_done: bool = False
    has_returned: bool = False
    turn: threading.Event = field(default_factory=threading.Event)
    products: list[_Sums] = field(default_factory=list)

    @property
    def is_ready(self) -> bool:
        """True if it can go on."""
        return not self.is_done and (self.is_through is None or self.is_through())


class _Roles:
    """Runs roles one at a time."""

    def __init__(self) -> None:
        self._current = _Role()
        self._back = threading.Event()
        self._is_over = False

    def run(self, calls: Sequence[tuple[Any, Sequence[Any]]], *_: object) -> None:
        """Run all `calls` until they have returned.

        Raises:
            DeadlockError: no role goes on.
        """
        roles = [_Role() for _ in calls]
        self._is_over = False
        with ThreadPoolExecutor(len(calls)) as pool:
            futures = [pool.submit(self._serve, role, *one) for role, one in zip(roles, calls, strict=True)]
            while ready := [role for role in roles if role.is_ready]:
                for role in ready:
                    self._resume(role)
                if any(role.is_done and not role.has_returned for role in roles):
                    break
            left = [role for role in roles if not role.is_done]
            self._is_over = True
            for role in left:
                self._resume(role)
        for future in futures:
            error = future.exception()
            if error is not None and not isinstance(error, _AbandonedError):
                raise error
        if left:
            raise DeadlockError("every role of a program's warps waits for another")

    def wait(self, is_through: Callable[[], bool]) -> None:
        """Let others run until a barrier is through."""
        if is_through():
            return
        role = self._current
        role.is_through = is_through
        self._back.set()
        role.turn.wait()
        role.turn.clear()
        role.is_through = None
        if self._is_over:
            raise _AbandonedError

    @property
    def products(self) -> list[_Sums]:
        """Products of the role that runs which are under way, the oldest first."""
        return self._current.products

    def _resume(self, role: _Role) -> None:
        self._current = role
        self._back.clear()
        role.turn.set()
        self._back.wait()

    def _serve(self, role: _Role, function: Any, args: Sequence[Any]) -> None:
        role.turn.wait()
        role.turn.clear()
        try:
            if not self._is_over:
                function(*args)
            role.has_returned = True
        finally:
            role.is_done = True
            self._back.set()


# ---- shared memory ----


@dataclass(slots=True)
class _Barrier:
    """A barrier: its phase is over when so many have arrived and all bytes have come."""

    count: int
    missing: int
    missing_bytes: int = 0
    phase: int = 0

    def settle(self) -> None:
        """Begin the next phase if this one is over."""
        if self.missing == 0 and self.missing_bytes == 0:
            self.phase ^= 1
            self.missing = self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """A block or a barrier in shared memory; the block perhaps of other extents, or with its axes swapped."""

    cells: list[Any]
    at: int
    extents: tuple[int, ...] = ()
    is_swapped: bool = False

    def reshape(self, extents: Sequence[Any]) -> _Cell:
        return replace(self, extents=tuple(map(int, extents)))

    def permute(self, order: Sequence[Any]) -> _Cell:
        return replace(self, is_swapped=not self.is_swapped)

    @property
    def value(self) -> Any:
        found = self.cells[self.at]
        if self.extents:
            found = found.reshape(self.extents)
        return found.trans(1, 0) if self.is_swapped else found

    def load(self, layout: object) -> Any:
        return self.value

    def store(self, value: Any) -> None:
        self.put(value)

    def put(self, value: Any) -> None:
        self.cells[self.at] = value


@dataclass(frozen=True, slots=True)
class _Memory:
    cells: list[Any]

    def index(self, at: Any) -> _Cell:
        return _Cell(cells=self.cells, at=int(at))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Descriptor:
    """A tensor of which the copy engine knows, in blocks of such `extents`."""

    matrix: Any
    dtype: Any
    extents: tuple[int, ...]
    block_bytes: int
    layout: None = None


@dataclass(slots=True)
class _Sums:
    """Sums that a product adds to."""

    compute: Callable[[], Any]
    value: Any = None

    def get(self) -> Any:
        if self.value is None:
            self.value = self.compute()
        return self.value


# ---- the language ----


def _make_modules() -> Mapping[str, Any]:
    """Return `gl` and `hopper` as generated kernels use them."""
    import triton.language as tl

    roles = _Roles()
    return {"gl": _make_language(tl, roles), "hopper": _make_hopper(tl, roles)}


def _make_language(tl: Any, roles: _Roles) -> SimpleNamespace:
    """Return `gl`: blocks, shared memory, and layouts, which mean nothing."""

    def fill(shape: Sequence[Any], value: Any, dtype: Any, layout: object = None) -> Any:
        # the interpreter makes no constants of 16-bit types
        is_short = dtype.is_floating() and dtype.primitive_bitwidth < 32
        block = tl.full(list(shape), value, tl.float32 if is_short else dtype)
        return block.to(dtype) if is_short else block

    def allocate(dtype: Any, shape: Sequence[Any], layout: object) -> _Memory:
        # what is read before it is written is nothing to count on
        block = fill(shape[1:], float("nan"), dtype) if dtype.is_floating() else None
        return _Memory([block] * int(shape[0]))

    return SimpleNamespace(
        constexpr=tl.constexpr,
        int64=tl.int64,
        arange=lambda start, end, layout=None: tl.arange(start, end),
        full=fill,
        convert_layout=lambda value, layout: value,
        max=tl.max,
        sum=tl.sum,
        static_range=range,
        allocate_shared_memory=allocate,
        warp_specialize=roles.run,
        NVMMASharedLayout=SimpleNamespace(get_default_for=_do_nothing),
        NVMMADistributedLayout=_do_nothing,
        BlockedLayout=_do_nothing,
        SliceLayout=_do_nothing,
        DotOperandLayout=_do_nothing,
    )


def _make_hopper(tl: Any, roles: _Roles) -> SimpleNamespace:
    """Return `hopper`: the copy engine, barriers, and products that are waited for."""

    def describe(
        base: Any, shape: Sequence[Any], strides: Sequence[Any], block_shape: Sequence[Any], layout: object
    ) -> _Descriptor:
        element = base.dtype.element_ty
        extents = tuple(map(int, block_shape))
        matrix = tl.make_tensor_descriptor(base, list(shape), list(strides), list(block_shape))
        size = math.prod(extents) * element.primitive_bitwidth // 8
        return _Descriptor(matrix=matrix, dtype=element, extents=extents, block_bytes=size)

    def wait(barrier: _Cell, phase: Any) -> None:
        parity = int(phase)
        roles.wait(lambda: barrier.value.phase != parity)

    def multiply(left: Any, right: _Cell, sums: Any, use_acc: Any = True, is_async: Any = False) -> Any:
        def compute() -> Any:
            before = sums.get() if isinstance(sums, _Sums) else sums
            kept = before if use_acc else tl.zeros_like(before)
            return tl.dot(left.value if isinstance(left, _Cell) else left, right.value, kept)

        found = _Sums(compute)
        roles.products.append(found)
        return found if is_async else found.get()

    def wait_for_products(pending: Any, deps: Sequence[Any]) -> Any:
        while len(roles.products) > int(pending):
            roles.products.pop(0).get()
        found = tuple(one if not isinstance(one, _Sums) or one.value is None else one.value for one in deps)
        return found if len(found) > 1 else found[0]

    return SimpleNamespace(
        tma=SimpleNamespace(
            make_tensor_descriptor=describe,
            async_copy_global_to_shared=_copy_to_shared,
            async_copy_shared_to_global=_copy_from_shared,
            store_wait=_do_nothing,
        ),
        fence_async_shared=_do_nothing,
        mbarrier=SimpleNamespace(
            MBarrierLayout=_do_nothing,
            init=_init_barrier,
            expect=_expect_bytes,
            arrive=_arrive,
            wait=wait,
        ),
        warpgroup_mma=multiply,
        warpgroup_mma_wait=wait_for_products,
    )


def _copy_to_shared(source: _Descriptor, places: Sequence[Any], barrier: _Cell, target: _Cell) -> None:
    target.put(source.matrix.load(list(places)))
    barrier.value.missing_bytes -= source.block_bytes
    barrier.value.settle()


def _copy_from_shared(target: _Descriptor, places: Sequence[Any], source: _Cell) -> None:
    target.matrix.store(list(places), source.reshape(target.extents).value)


def _init_barrier(barrier: _Cell, count: Any) -> None:
    barrier.put(_Barrier(count=int(count), missing=int(count)))


def _expect_bytes(barrier: _Cell, size: Any) -> None:
    barrier.value.missing_bytes += int(size)
    barrier.value.missing -= 1
    barrier.value.settle()


def _arrive(barrier: _Cell, count: Any = 1, pred: Any = True) -> None:
    if pred:
        barrier.value.missing -= int(count)
        barrier.value.settle()


def _do_nothing(*args: object, **kwargs: object) -> None:
    return None
