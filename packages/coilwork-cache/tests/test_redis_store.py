"""The Redis store: signatures, failing servers, expiry. Runs against fakeredis."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator

import fakeredis
import pytest

from coilwork_cache import (
    CacheUnavailableWarning,
    EntryTooLargeWarning,
    InvalidSettingError,
    StoreStats,
    UntrustedEntryWarning,
    content_key,
)
from coilwork_cache.redis_store import RedisStore

SECRET = b"a secret of more than 16 bytes"
KEY, OTHER = content_key("k", "one"), content_key("k", "two")
NAME = f"coilwork:1:{KEY}"


@pytest.fixture
def server() -> fakeredis.FakeServer:
    return fakeredis.FakeServer()


@pytest.fixture
def client(server: fakeredis.FakeServer) -> fakeredis.FakeRedis:
    return fakeredis.FakeRedis(server=server)


@pytest.fixture
def store(client: fakeredis.FakeRedis) -> RedisStore:
    return RedisStore(client, signing_key=SECRET)


def test_machines_with_the_same_secret_share(store: RedisStore, server: fakeredis.FakeServer) -> None:
    store.put(KEY, b"value")
    assert RedisStore(fakeredis.FakeRedis(server=server), signing_key=SECRET).get(KEY) == b"value"


def test_every_flipped_bit_and_every_truncation_is_refused(
    store: RedisStore, client: fakeredis.FakeRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "coilwork.cache")
    store.put(KEY, b"value")
    whole = client.get(NAME)
    assert isinstance(whole, bytes)
    flips = [
        whole[: i // 8] + bytes([whole[i // 8] ^ 1 << i % 8]) + whole[i // 8 + 1 :]
        for i in range(8 * len(whole))
    ]
    cuts = [whole[:length] for length in range(len(whole))]
    client.set(NAME, whole + b"\0")
    with pytest.warns(UntrustedEntryWarning, match="untrusted-entry"):
        assert store.get(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for bad in [*flips, *cuts]:
            client.set(NAME, bad)
            assert store.get(KEY) is None
    # the log has the others
    assert len(caplog.records) == len(flips) + len(cuts)
    assert store.stats().corrupt == store.stats().misses == len(flips) + len(cuts) + 1


def test_another_secret_is_refused_and_overwritten(store: RedisStore, client: fakeredis.FakeRedis) -> None:
    stranger = RedisStore(client, signing_key=b"some other secret of theirs")
    stranger.put(KEY, b"evil")
    with pytest.warns(UntrustedEntryWarning, match="signature does not match"):
        assert store.get(KEY) is None
    store.put(KEY, b"good")
    assert store.get(KEY) == b"good"


def test_unsigned_is_refused(store: RedisStore, client: fakeredis.FakeRedis) -> None:
    client.set(NAME, b"some value that nobody signed, but long enough")
    with pytest.warns(UntrustedEntryWarning, match="unsigned"):
        assert store.get(KEY) is None


def test_a_signed_entry_under_another_key_is_refused(store: RedisStore, client: fakeredis.FakeRedis) -> None:
    store.put(KEY, b"value")
    signed = client.get(NAME)
    assert isinstance(signed, bytes)
    client.set(f"coilwork:1:{OTHER}", signed)
    with pytest.warns(UntrustedEntryWarning):
        assert store.get(OTHER) is None


def test_a_decoding_client_is_named_as_the_cause() -> None:
    store = RedisStore(fakeredis.FakeRedis(decode_responses=True, encoding="latin-1"), signing_key=SECRET)
    store.put(KEY, b"value")
    with pytest.warns(UntrustedEntryWarning, match="decode_responses=False"):
        assert store.get(KEY) is None


def test_a_dead_server_warns_once_and_is_left_alone(
    server: fakeredis.FakeServer, client: fakeredis.FakeRedis
) -> None:
    now_s = [100.0]
    store = RedisStore(client, signing_key=SECRET, retry_after_s=30, clock=lambda: now_s[0])
    store.put(KEY, b"value")
    server.connected = False
    with pytest.warns(CacheUnavailableWarning, match="store-unavailable"):
        assert store.get(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put(OTHER, b"value")
        assert store.get(KEY) is None and not store.contains(KEY)
        store.delete(KEY)
        assert list(store.entries()) == [] and store.clear() == 0
        assert store.stats().failures == 1  # one attempt, not seven
        now_s[0] += 31
        assert store.get(KEY) is None
        assert store.stats().failures == 2
        server.connected = True
        now_s[0] += 31
        assert store.get(KEY) == b"value"


def test_a_silent_server_costs_one_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = RedisStore.connect(f"redis://127.0.0.1:{port}", signing_key=SECRET, timeout_s=0.1)
        began_s = time.monotonic()
        with pytest.warns(CacheUnavailableWarning, match="imeout|timed out"):
            assert store.get(KEY) is None
        for _ in range(20):
            assert store.get(KEY) is None
        # 21 timeouts and redis-py's own retries would take longer.
        assert time.monotonic() - began_s < 3.0


def answer_forever(server: socket.socket, pieces: Callable[[], Iterable[bytes]]) -> None:
    """Answer every connection with `pieces`, whatever it asks."""

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(4096)
            for piece in pieces():
                connection.sendall(piece)

    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def drip() -> Iterator[bytes]:
    yield b"$100000\r\n"
    while True:
        time.sleep(0.02)
        yield b"x"


HOSTILE: dict[str, Callable[[], Iterable[bytes]]] = {
    "a web server": lambda: [b"HTTP/1.1 400 Bad Request\r\n\r\n<html>"],
    "random bytes": lambda: [bytes(range(256)) * 8],
    "a size that is none": lambda: [b"$12345678901234567890123\r\n"],
    "a negative size": lambda: [b"$-7\r\nvalue\r\n"],
    "lists in lists": lambda: [b"*1\r\n" * 20_000],
    "a byte now and then": drip,
    "errors": lambda: [b"-OOM command not allowed when used memory > 'maxmemory'\r\n"] * 20,
    "numbers": lambda: [b":1\r\n"] * 20,
    "an end": list,
}


@pytest.mark.parametrize("pieces", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.filterwarnings("ignore::coilwork_cache.CacheWarning")
def test_a_hostile_server_costs_little_time_and_no_more(pieces: Callable[[], Iterable[bytes]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=answer_forever, args=(server, pieces), daemon=True).start()
        store = RedisStore.connect(f"redis://127.0.0.1:{port}", signing_key=SECRET, timeout_s=0.2)
        began_s = time.monotonic()
        assert store.get(KEY) is None
        store.put(KEY, b"value")
        store.contains(KEY)
        store.delete(KEY)
        assert list(store.entries()) == []
        store.check(KEY)
        assert store.clear() == 0
        assert time.monotonic() - began_s < 2.0


def test_a_server_that_does_not_listen_is_a_failure_that_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    store = RedisStore.connect(f"redis://127.0.0.1:{port}", signing_key=SECRET)
    with pytest.warns(CacheUnavailableWarning):
        store.put(KEY, b"value")
    assert store.stats() == StoreStats(failures=1)


def test_namespaces_are_apart(client: fakeredis.FakeRedis) -> None:
    one = RedisStore(client, signing_key=SECRET, namespace="team-a")
    other = RedisStore(client, signing_key=SECRET, namespace="team-b")
    one.put(KEY, b"a")
    client.set("team-b:1:not-a-key", b"x")
    assert other.get(KEY) is None and other.clear() == 0 and list(other.entries()) == []
    assert one.get(KEY) == b"a"


def test_entries_expire(client: fakeredis.FakeRedis) -> None:
    RedisStore(client, signing_key=SECRET, ttl_s=60).put(KEY, b"value")
    assert 0 < client.ttl(NAME) <= 60


def test_too_large_an_entry_warns(client: fakeredis.FakeRedis) -> None:
    store = RedisStore(client, signing_key=SECRET, max_entry_bytes=4)
    store.put(KEY, b"old")
    with pytest.warns(EntryTooLargeWarning):
        store.put(KEY, b"larger")
    assert store.get(KEY) is None


def test_refuses_bad_settings(client: fakeredis.FakeRedis) -> None:
    with pytest.raises(InvalidSettingError, match="at least 16") as raised:
        RedisStore(client, signing_key=b"hunter2")
    assert "hunter2" not in str(raised.value)
    with pytest.raises(InvalidSettingError, match="namespace"):
        RedisStore(client, signing_key=SECRET, namespace="a*")
    with pytest.raises(InvalidSettingError, match="ttl_s"):
        RedisStore(client, signing_key=SECRET, ttl_s=0)
    with pytest.raises(InvalidSettingError, match="max_entry_bytes"):
        RedisStore(client, signing_key=SECRET, max_entry_bytes=0)
    with pytest.raises(InvalidSettingError, match="url") as raised:
        RedisStore.connect("http://user:hunter2@host", signing_key=SECRET)
    assert "hunter2" not in str(raised.value)
