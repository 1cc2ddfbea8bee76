"""The commands, on the folder, on a shared server, and on both."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import fakeredis
import pytest
import redis
from click.testing import CliRunner, Result

from coilwork_cache import GraphCache, GraphEntry, KernelCache, LocalStore, content_key
from coilwork_cache.commands import cache
from coilwork_cache.redis_store import RedisStore
from coilwork_cache.tiered_store import SECRET

Run = Callable[..., Result]
TEAM = "a secret of the whole team"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> fakeredis.FakeRedis:
    client = fakeredis.FakeRedis()
    monkeypatch.setattr(redis.Redis, "from_url", lambda url, **_: client)
    monkeypatch.setenv(SECRET, TEAM)
    monkeypatch.delenv("COILWORK_REDIS_URL", raising=False)
    return client


@pytest.fixture
def run(client: fakeredis.FakeRedis, tmp_path: Path) -> Run:
    """Fills the folder with a kernel and a graph, the server with a kernel and another graph."""
    local, shared = LocalStore(tmp_path / "cache"), RedisStore(client, signing_key=TEAM.encode())
    for store, name in ((local, "one"), (shared, "other")):
        KernelCache(store).put(content_key("kernel", name), b"code")
        parts = {"graph": name, "options": "fusion=True"}
        GraphCache(store).put(content_key("graph", name), GraphEntry(module="", report={}, key_parts=parts))
    # each test has a server of its own, and this process remembers the first one under its address
    url = f"redis://{tmp_path.name}"

    def run(*words: str, tier: str = "", status: int = 0) -> Result:
        server = ["--redis-url", url] if tier else []
        chosen = ["--tier", tier] if tier not in ("", "both") else []
        result = CliRunner().invoke(cache, ["--dir", str(tmp_path / "cache"), *server, *chosen, *words])
        assert result.exit_code == status, result.output
        return result

    return run


@pytest.mark.parametrize(("tier", "kernels"), [("", 1), ("shared", 1), ("both", 2)])
def test_lists_and_clears_what_the_tier_holds(
    run: Run, client: fakeredis.FakeRedis, tier: str, kernels: int
) -> None:
    listed = run("ls", "--kind", "kernel", tier=tier).output.splitlines()
    assert len(listed) == kernels
    assert sum(line.endswith("shared") for line in listed) == (tier != "")
    assert "1970" not in "".join(listed)
    assert run("clear", "--kind", "kernel", tier=tier).output == f"removed {kernels} entries\n"
    assert len(run("ls", tier="both").output.splitlines()) == 4 - kernels
    run("clear", tier=tier)
    assert client.dbsize() == (2 if tier == "" else 0)


def test_counts_of_the_folder_stand_beside_what_both_hold(run: Run, tmp_path: Path) -> None:
    KernelCache(LocalStore(tmp_path / "cache")).get(content_key("kernel", "one"))
    lines = [line.split() for line in run("stats", tier="both").output.splitlines()]
    place, headings, graph, kernel, total, shared, short, *rest = lines
    assert place == [str(tmp_path / "cache")] and shared == ["shared", "server"]
    assert headings == "kind entries MiB hits of them shared misses written damaged".split()
    assert graph[0] == "graph" and graph[3:] == ["0", "0", "0", "1", "0"]
    assert kernel[:2] == ["kernel", "1"] and kernel[3:] == ["1", "0", "0", "1", "0"]
    assert total[:2] == ["total", "2"] and total[3:] == ["1", "0", "0", "2", "0"]
    assert short == ["kind", "entries", "MiB"]
    assert [row[:2] for row in rest] == [["graph", "1"], ["kernel", "1"], ["total", "2"]]


def test_graphs_of_both_are_compared(run: Run) -> None:
    keys = [content_key("graph", name)[:12] for name in ("one", "other")]
    assert run("why", *keys, tier="both").output.splitlines() == [
        "graph: different",
        "  -one",
        "  +other",
        "options: equal",
    ]


def test_damage_in_both_is_found_and_foreign_entries_stay(
    run: Run, client: fakeredis.FakeRedis, tmp_path: Path
) -> None:
    key = content_key("kernel", "one")
    (tmp_path / "cache" / "v1" / key[:2] / key).write_bytes(b"rubbish")
    foreign = f"coilwork:1:{content_key('kernel', 'other')}"
    client.set(foreign, b"signed by nobody")
    shown = run("verify", tier="both", status=1).output
    assert "2 intact, 2 damaged" in shown and "corrupt-entry" in shown and "untrusted-entry" in shown
    assert client.exists(foreign)
    assert "2 damaged" not in run("verify", tier="both", status=1).output


def test_an_archive_of_both_fills_both(run: Run, client: fakeredis.FakeRedis, tmp_path: Path) -> None:
    archive = str(tmp_path / "archive")
    assert "exported 4 entries" in run("export", archive, tier="both").output
    run("clear", tier="both")
    assert "imported 4 entries" in run("import", archive, tier="shared").output
    assert client.dbsize() == 4 and run("ls").output == ""
    assert "imported 4 entries" in run("import", archive).output
    assert "4 intact, 0 damaged" in run("verify").output


def test_a_server_without_address_or_secret_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = str(tmp_path / "cache")
    assert "needs --redis-url" in CliRunner().invoke(cache, ["--tier", "both", "ls"]).output
    monkeypatch.setenv("COILWORK_REDIS_URL", "redis://somewhere")
    # what the environment names alone is not touched unless it is asked for
    assert len(CliRunner().invoke(cache, ["--dir", folder, "ls"]).output.splitlines()) == 2
    monkeypatch.delenv(SECRET)
    refused = CliRunner().invoke(cache, ["--dir", folder, "--tier", "both", "ls"])
    assert f"redis_url needs {SECRET}" in str(refused.exception)


def test_a_server_that_is_down_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, TEAM)
    KernelCache(LocalStore(tmp_path)).put(content_key("kernel", "one"), b"code")
    with pytest.warns(UserWarning, match="store-unavailable"):
        shown = CliRunner().invoke(
            cache, ["--dir", str(tmp_path), "--redis-url", "redis://127.0.0.1:1", "ls"]
        )
    assert shown.exit_code == 0 and len(shown.output.splitlines()) == 1
    assert os.listdir(tmp_path) == ["v1"]
