"""Run kernels in Gluon, Triton's dialect, in Triton's interpreter, which knows Triton alone.

Layouts mean nothing here. The roles of a program's warps are threads that run one at a time, each until it
waits at a barrier that is not through, or has arrived at one; if all of them wait, `DeadlockError` says so.

What hardware may do sooner or later is done at the worst time, so that results show what a kernel does not
wait for. Products are computed, and blocks read to registers for them, when they are waited for; then the
copy engine reads what it stores, too. Blocks that the engine brings are nothing to count on as soon as it is
told to bring them, and come when their barrier is waited for. As soon as a role says that a stage is free,
the others go on as far as they can.
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


class LeftStoreError(Exception):
    """A role ends before the copy engine has read what it is to store."""


class NoFenceError(Exception):
    """A role has the copy engine or tensor cores read what its threads stored, without a fence."""


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
    products: list[_Pending] = field(default_factory=list)
    stores: list[Callable[[], None]] = field(default_factory=list)
    unfenced: list[_Cell] = field(default_factory=list)

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
        self._let_others_run(is_through)

    def give_way(self) -> None:
        """Let others run as far as they can."""
        self._let_others_run(None)

    @property
    def products(self) -> list[_Pending]:
        """Products of the role that runs which are under way, the oldest first."""
        return self._current.products

    @property
    def stores(self) -> list[Callable[[], None]]:
        """Return the copy engine's stores that the running role has not waited for, the oldest first."""
        return self._current.stores

    def remember(self, cell: _Cell) -> None:
        """Note that the running role has stored to `cell`."""
        self._current.unfenced.append(cell)

    def fence(self) -> None:
        """Make all that the running role has stored visible to the copy engine and to other roles."""
        self._current.unfenced.clear()

    def check_fence(self, cell: _Cell) -> None:
        """Check that what is read was stored before a fence.

        Raises:
            NoFenceError: no fence is behind what the role that runs has stored.
        """
        if any(one.cells is cell.cells and one.at == cell.at for one in self._current.unfenced):
            raise NoFenceError("what threads stored is read in another way, without a fence")

    def _let_others_run(self, is_through: Callable[[], bool] | None) -> None:
        role = self._current
        role.is_through = is_through
        self._back.set()
        role.turn.wait()
        role.turn.clear()
        role.is_through = None
        if self._is_over:
            raise _AbandonedError

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
                if role.stores:
                    raise LeftStoreError("a role ends before the copy engine has read what it is to store")
            role.has_returned = True
        finally:
            role.is_done = True
            self._back.set()


# ---- shared memory ----


@dataclass(slots=True)
class _Pending:
    """A block in registers that is computed, or read, as late as hardware may."""

    compute: Callable[[], Any]
    value: Any = None

    def get(self) -> Any:
        if self.value is None:
            self.value = self.compute()
        return self.value


@dataclass(slots=True)
class _Barrier:
    """A barrier: its phase is over when so many have arrived and all bytes have come."""

    count: int
    missing: int
    missing_bytes: int = 0
    phase: int = 0
    copies: list[Callable[[], None]] = field(default_factory=list)

    def is_through(self, parity: int) -> bool:
        """Tell if the phase of this `parity` is over. What the copy engine brings has come then."""
        if self.phase == parity and self.missing == 0:
            while self.copies:
                self.copies.pop(0)()
        return self.phase != parity

    def settle(self) -> None:
        """Begin the next phase if this one is over."""
        if self.missing == 0 and self.missing_bytes == 0:
            self.phase ^= 1
            self.missing = self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """A block or a barrier in shared memory; the block perhaps of other extents, or with its axes swapped.
    `remember` is told of stores.
    """

    cells: list[Any]
    at: int
    remember: Callable[[_Cell], None]
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

    def load(self, layout: object) -> _Pending:
        """Return the block in registers, for a product: nothing else waits for them."""
        return _Pending(lambda: self.value)

    def store(self, value: Any) -> None:
        self.put(value)
        self.remember(self)

    def put(self, value: Any) -> None:
        self.cells[self.at] = value


@dataclass(frozen=True, slots=True)
class _Memory:
    cells: list[Any]
    remember: Callable[[_Cell], None]

    def index(self, at: Any) -> _Cell:
        return _Cell(cells=self.cells, at=int(at), remember=self.remember)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Descriptor:
    """A tensor of which the copy engine knows, in blocks of such `extents`."""

    matrix: Any
    dtype: Any
    extents: tuple[int, ...]
    block_bytes: int
    layout: None = None


# ---- the language ----


def _make_modules() -> Mapping[str, Any]:
    """Return `gl` and `hopper` as generated kernels use them."""
    import triton.language as tl

    roles = _Roles()
    return {"gl": _make_language(tl, roles), "hopper": _make_hopper(tl, roles)}


def _make_language(tl: Any, roles: _Roles) -> SimpleNamespace:
    """Return `gl`: blocks, shared memory, and layouts, which mean nothing."""

    def fill(shape: Sequence[Any], value: Any, dtype: Any, layout: object = None) -> Any:
        return _fill(tl, shape, value, dtype)

    def allocate(dtype: Any, shape: Sequence[Any], layout: object) -> _Memory:
        return _Memory([_make_nothing(tl, shape[1:], dtype)] * int(shape[0]), roles.remember)

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


def _fill(tl: Any, shape: Sequence[Any], value: Any, dtype: Any) -> Any:
    # the interpreter makes no constants of 16-bit types
    is_short = dtype.is_floating() and dtype.primitive_bitwidth < 32
    block = tl.full(list(shape), value, tl.float32 if is_short else dtype)
    return block.to(dtype) if is_short else block


def _make_nothing(tl: Any, shape: Sequence[Any], dtype: Any) -> Any:
    """Return a block of shared memory that holds nothing to count on."""
    return _fill(tl, shape, float("nan"), dtype) if dtype.is_floating() else None


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
        roles.wait(lambda: barrier.value.is_through(parity))

    def multiply(left: Any, right: _Cell, sums: Any, use_acc: Any = True, is_async: Any = False) -> Any:
        def compute() -> Any:
            before = sums.get() if isinstance(sums, _Pending) else sums
            kept = before if use_acc else tl.zeros_like(before)
            factor = left.get() if isinstance(left, _Pending) else left
            return tl.dot(factor.value if isinstance(factor, _Cell) else factor, right.value, kept)

        for factor in (left, right):
            if isinstance(factor, _Cell):
                roles.check_fence(factor)
        found = _Pending(compute)
        roles.products.append(found)
        return found if is_async else found.get()

    def wait_for_products(pending: Any, deps: Sequence[Any]) -> Any:
        while len(roles.products) > int(pending):
            roles.products.pop(0).get()
        found = tuple(
            one if not isinstance(one, _Pending) or one.value is None else one.value for one in deps
        )
        return found if len(found) > 1 else found[0]

    def bring(source: _Descriptor, places: Sequence[Any], barrier: _Cell, target: _Cell) -> None:
        found = source.matrix.load(list(places))

        def come() -> None:
            target.put(found)
            barrier.value.missing_bytes -= source.block_bytes
            barrier.value.settle()

        target.put(_make_nothing(tl, source.extents, source.dtype))
        barrier.value.copies.append(come)

    def store(target: _Descriptor, places: Sequence[Any], source: _Cell) -> None:
        where = list(places)
        roles.check_fence(source)
        roles.stores.append(lambda: target.matrix.store(where, source.reshape(target.extents).value))

    def wait_for_stores(pending: Any) -> None:
        while len(roles.stores) > int(pending):
            roles.stores.pop(0)()

    def arrive(barrier: _Cell, count: Any = 1, pred: Any = True) -> None:
        if pred:
            barrier.value.missing -= int(count)
            barrier.value.settle()
            roles.give_way()

    return SimpleNamespace(
        tma=SimpleNamespace(
            make_tensor_descriptor=describe,
            async_copy_global_to_shared=bring,
            async_copy_shared_to_global=store,
            store_wait=wait_for_stores,
        ),
        fence_async_shared=roles.fence,
        mbarrier=SimpleNamespace(
            MBarrierLayout=_do_nothing,
            init=_init_barrier,
            expect=_expect_bytes,
            arrive=arrive,
            wait=wait,
        ),
        warpgroup_mma=multiply,
        warpgroup_mma_wait=wait_for_products,
    )


def _init_barrier(barrier: _Cell, count: Any) -> None:
    barrier.put(_Barrier(count=int(count), missing=int(count)))


def _expect_bytes(barrier: _Cell, size: Any) -> None:
    barrier.value.missing_bytes += int(size)
    barrier.value.missing -= 1
    barrier.value.settle()


def _do_nothing(*args: object, **kwargs: object) -> None:
    return None
