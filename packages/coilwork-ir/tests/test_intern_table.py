"""Interning tables: one live value per key, weakly held, also under threads."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from weakref import ref

from coilwork_ir.intern_table import InternTable, MemoTable


class Value:
    def __init__(self, text: str) -> None:
        self.text = text


def test_one_value_per_key() -> None:
    table: InternTable[str, Value] = InternTable()
    first = table.intern("a", lambda: Value("a"))
    assert table.intern("a", lambda: Value("again")) is first
    assert table.add("a", Value("late")) is first
    assert table.intern("b", lambda: Value("b")) is not first
    assert len(table) == 2


def test_dead_values_are_made_anew_and_swept() -> None:
    table: InternTable[int, Value] = InternTable()
    table.intern(0, lambda: Value("old"))
    gc.collect()
    kept = table.intern(0, lambda: Value("new"))
    assert kept.text == "new" and table.intern(0, lambda: Value("newer")) is kept
    for n in range(1, 50_000):
        table.intern(n, lambda: Value("short-lived"))
    assert len(table) < 10_000
    assert table.intern(0, lambda: Value("newer")) is kept


def test_callers_that_insert_themselves_share_the_values_and_the_sweeps() -> None:
    table: InternTable[int, Value] = InternTable()

    def interned(key: int, value: Value) -> Value:
        mine = ref(value)
        if table.insert(key, mine) is mine and len(table.refs) <= table.sweep_at:
            return value
        return table.add(key, value)

    first = interned(0, Value("first"))
    assert first.text == "first"
    assert interned(0, Value("again")) is first
    for n in range(1, 50_000):
        assert interned(n, Value("short-lived")).text == "short-lived"
    assert len(table) < 10_000
    assert interned(0, Value("late")) is first


def test_threads_get_the_same_interned_value() -> None:
    workers = 4
    with ThreadPoolExecutor(workers) as pool:
        for _ in range(20):
            table: InternTable[int, Value] = InternTable()
            barrier = Barrier(workers)

            def make(
                _: int, table: InternTable[int, Value] = table, barrier: Barrier = barrier
            ) -> list[Value]:
                barrier.wait()
                return [table.intern(n, lambda: Value("x")) for n in range(300)]

            results = list(pool.map(make, range(workers)))
            assert all(a is b for other in results[1:] for a, b in zip(results[0], other, strict=True))


def test_memo_is_bounded() -> None:
    memo: MemoTable[int, str] = MemoTable(limit=10)
    for n in range(100):
        assert memo.put(n, str(n)) == str(n)
        assert memo.get(n) == str(n) and len(memo) <= 10


class _Interns:
    """Garbage in a cycle that interns something when it is collected."""

    def __init__(self, table: InternTable[int, Value], kept: list[Value], key: int) -> None:
        self.itself = self
        self.table, self.kept, self.key = table, kept, key

    def __del__(self) -> None:
        self.kept.append(self.table.intern(self.key, lambda: Value("kept")))


def test_a_collection_during_a_sweep_may_intern() -> None:
    table: InternTable[int, Value] = InternTable()
    before = gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        kept = [table.intern(number, lambda: Value("kept")) for number in range(4096)]
        for number in range(20):
            _Interns(table, kept, 10_000 + number)
        # the next collection comes some thousand allocations later: in the sweep that one more entry starts
        gc.set_threshold(gc.get_count()[0] + 1000)
        gc.enable()
        kept.append(table.intern(5000, lambda: Value("kept")))
    finally:
        gc.set_threshold(*before)
        gc.enable()
    gc.collect()
    assert len(table) == 4096 + 1 + 20
