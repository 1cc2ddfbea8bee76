"""Compiling for GPUs that are not here: the worker process, the pool, and Triton's interpreter."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_sample_kernels import checked_kernel, triton_kernel

from coilwork_runtime import Builder, KernelBuildError
from coilwork_runtime.triton_kernels import worker
from coilwork_runtime.triton_kernels.compilation import (
    GpuBinary,
    GpuTarget,
    WorkerError,
    WorkerPool,
    get_gpu_target,
    make_candidates,
    read_triton_version,
)
from coilwork_runtime.triton_kernels.worker import read_frame, serve, write_frame

pytest.importorskip("triton", reason="compiles Triton kernels")


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    members = WorkerPool()
    yield members
    members.close()


@pytest.mark.parametrize(("target", "threads"), [("sm_90", 128), ("sm_80", 128), ("gfx942", 256)])
def test_machine_code_comes_back(pool: WorkerPool, target: str, threads: int) -> None:
    ((only,),) = Builder(pool=pool).binaries([triton_kernel(target=target)])
    binary = only[1]
    assert isinstance(binary, GpuBinary)
    assert binary.image.startswith(b"\x7fELF")
    assert b"double_it" in binary.image
    assert (binary.name, binary.threads, binary.scratch_bytes) == ("double_it", threads, 0)


GLUON = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def move(a, b, n0, XBLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    at = gl.program_id(0) * XBLOCK + gl.arange(0, XBLOCK, layout=LAYOUT)
    gl.store(b + at, gl.load(a + at, at < n0) * 2, at < n0)


@gluon.jit
def rest(n0):
    pass


@gluon.jit
def double_it(a, b, n0, XBLOCK: gl.constexpr):
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    gl.warp_specialize([(move, (a, b, n0, XBLOCK, LAYOUT)), (rest, (n0,))], [4], [24])
"""


def test_gluon_is_compiled_and_launched_with_all_its_warps(pool: WorkerPool) -> None:
    ((only,),) = Builder(pool=pool).binaries([triton_kernel(source=GLUON, target="sm_90")])
    binary = only[1]
    assert isinstance(binary, GpuBinary), binary
    assert b"double_it" in binary.image
    assert binary.threads == 2 * 128


def test_checks_are_compiled_in(pool: WorkerPool) -> None:
    ((only,),) = Builder(pool=pool).binaries([checked_kernel()])
    assert isinstance(only[1], GpuBinary)
    assert b"index out of range" in only[1].image


def test_a_kernel_that_triton_refuses(pool: WorkerPool) -> None:
    broken = triton_kernel(source=triton_kernel().source.replace("tl.load", "tl.no_such_thing"))
    with pytest.raises(KernelBuildError, match=r"(?s)kernel double_it.*XBLOCK=512.*no_such_thing.*try"):
        Builder(pool=pool).build([broken])
    # and its worker goes on
    assert Builder(pool=pool).build([triton_kernel()])


def test_a_source_longer_than_a_pipe_holds(pool: WorkerPool) -> None:
    long = triton_kernel(source=f"# {'x' * 300_000}\n" + triton_kernel().source)
    assert Builder(pool=pool).build([long])


def test_printing_kernels_do_not_disturb_the_conversation(pool: WorkerPool) -> None:
    chatty = triton_kernel(source="print('hello from the source')\n" + triton_kernel().source)
    assert Builder(pool=pool).build([chatty])


def test_a_worker_that_dies_is_replaced_once_and_then_reported() -> None:
    members = WorkerPool()
    deadly = triton_kernel(source="import os\nos.write(2, b'last words')\nos._exit(7)\n")
    with pytest.raises(KernelBuildError, match=r"(?s)ended with code (7|-9)"):
        Builder(pool=members).build([deadly])
    assert Builder(pool=members).build([triton_kernel()])
    members.close()


def test_a_worker_that_takes_too_long_is_ended() -> None:
    members = WorkerPool()
    slow = triton_kernel(source="import time\ntime.sleep(600)\n" + triton_kernel().source)
    target = GpuTarget(backend="cuda", arch=90, warp_size=32)
    ((endless,), (quick,)) = (make_candidates(spec, target, "x") for spec in (slow, triton_kernel()))
    with pytest.raises(WorkerError, match="not compiled after 1 s"):
        members.compile(endless.request, timeout_s=1.0)
    assert members.compile(quick.request, timeout_s=60.0)[1]
    members.close()


def test_idle_workers_that_went_away_are_not_noticed() -> None:
    members = WorkerPool()
    members.warm_up(1)
    for member in members._idle:
        member._process.kill()
        member._process.wait()
    (candidate,) = make_candidates(triton_kernel(), GpuTarget(backend="cuda", arch=90, warp_size=32), "x")
    assert members.compile(candidate.request)[1]
    members.close()


def test_workers_do_not_run_the_main_module_again_and_import_no_torch(tmp_path: Path) -> None:
    """A script without the usual guard compiles a kernel."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            print("main runs")
            from runtime_sample_kernels import triton_kernel
            from coilwork_runtime import Builder
            probe = "import sys\\nassert 'torch' not in sys.modules, 'torch is loaded'\\n"
            Builder(workers=2).build([triton_kernel(f"k{k}", factor=k, source=probe + \
triton_kernel().source) for k in (2, 3)])
            print("built")
            """
        )
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("main runs\nbuilt\n", "", 0)


def test_requests_differ_by_all_that_matters() -> None:
    h200, mi300 = (
        GpuTarget(backend="cuda", arch=90, warp_size=32),
        GpuTarget(backend="hip", arch="gfx942", warp_size=64),
    )
    keys = {
        found.key
        for spec in (triton_kernel(blocks=(256, 512)), triton_kernel(blocks=(256,), factor=3))
        for target in (h200, mi300)
        for version in ("3.6", "3.7")
        for found in make_candidates(spec, target, version)
    }
    assert len(keys) == 3 * 2 * 2


def test_targets_by_name() -> None:
    assert get_gpu_target(triton_kernel(target="sm_90")) == GpuTarget(backend="cuda", arch=90, warp_size=32)
    assert get_gpu_target(triton_kernel(target="gfx942")) == GpuTarget(
        backend="hip", arch="gfx942", warp_size=64
    )
    assert get_gpu_target(triton_kernel(target="gfx1100")).warp_size == 32


def test_version_is_the_installed_one() -> None:
    import triton

    assert read_triton_version() == triton.__version__


def test_frames_are_read_as_written_and_cut_ones_refused() -> None:
    stream = io.BytesIO()
    write_frame(stream, {"a": 1}, b"blob")
    write_frame(stream, {})
    data = stream.getvalue()
    stream.seek(0)
    assert read_frame(stream) == ({"a": 1}, b"blob")
    assert read_frame(stream) == ({}, b"")
    assert read_frame(stream) is None
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(data[:20]))
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(data[:5]))
    with pytest.raises(EOFError, match="no frame"):
        read_frame(io.BytesIO(b"\xff" * 32))


def test_a_failing_request_is_answered(tmp_path: Path) -> None:
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    with asked.open("wb") as stream:
        write_frame(stream, {"n": 1})
        write_frame(stream, {"n": 0})

    def answer(request: object) -> tuple[dict[str, object], bytes]:
        assert isinstance(request, dict)
        return {"inverse": 1 // request["n"]}, b""

    read, write = os.pipe()
    os.write(write, asked.read_bytes())
    os.close(write)
    with os.fdopen(read, "rb", buffering=0) as requests, answered.open("wb") as replies:
        serve(requests, replies, answer)
    with answered.open("rb") as got:
        first, second = read_frame(got), read_frame(got)
    assert first == ({"metadata": {"inverse": 1}}, b"")
    assert second is not None and second[0]["error"].startswith("ZeroDivisionError")


def test_garbage_is_collected_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    answered: list[object] = []
    monkeypatch.setattr(worker, "COLLECT_AFTER", 2)
    monkeypatch.setattr(gc, "collect", lambda: collected.append(len(answered)))
    asked = io.BytesIO()
    for _ in range(5):
        write_frame(asked, {})
    read, write = os.pipe()
    os.write(write, asked.getvalue())
    os.close(write)

    def answer(request: object) -> tuple[dict[str, object], bytes]:
        answered.append(request)
        return {}, b""

    with os.fdopen(read, "rb", buffering=0) as requests:
        serve(requests, io.BytesIO(), answer)
    assert collected == [2, 4]


def test_errors_of_the_pool_say_why(pool: WorkerPool) -> None:
    with pytest.raises(WorkerError, match="KeyError"):
        pool.compile({"target": ["cuda", 90, 32], "source": "", "entry": "absent", "types": {}})
