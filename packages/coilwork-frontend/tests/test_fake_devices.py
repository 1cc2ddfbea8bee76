"""A thread that traces first may end before the others trace."""

from __future__ import annotations

import subprocess
import sys

# Two processes, of which one makes the first call in its main thread, the other in one that ends. A child of
# theirs traces, too.
PROGRAM = """
import gc, os, sys, threading, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from coilwork_frontend.torch_compat.fake_devices import keep_absent_device

def run(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

def trace():
    for _ in range(3):
        with FakeTensorMode():
            assert (torch.ones(3, device="cuda") + torch.ones(3, device="cuda")).device.type == "cuda"
            torch.ones(3).sin()

other = os.fork()
if other:
    keep_absent_device()
else:
    run(keep_absent_device)
for _ in range(3):
    run(trace)
    gc.collect()
    # what was freed is written to
    [bytearray(b"\\xff" * size) for size in range(8, 256, 8) for _ in range(50)]
trace()
child = os.fork()
if child == 0:
    trace()
    os._exit(0)
codes = [os.waitpid(one, 0)[1] for one in (child, other) if one]
sys.exit(str(codes) if any(codes) else 0)
"""


def test_the_thread_that_traced_first_has_ended() -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
