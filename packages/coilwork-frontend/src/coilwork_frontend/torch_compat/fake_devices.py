"""Fake tensors on devices that are not there.

Where torch was built for CUDA and finds no device, it traces calls of CUDA's by a stand-in for the device,
which lies in a table of the process. Before torch 2.12 the stand-in belongs to the thread that traced first:
when that thread has ended, whatever is traced next, in any thread and for any back end, reads freed memory,
and the process crashes. So several threads that compile first together crash as soon as one has ended.
"""

from __future__ import annotations

import threading

import torch

from coilwork_frontend.torch_compat.versions import find_release


def keep_absent_device() -> None:
    """Give CUDA's stand-in to a thread that lives as long as the process. To be called before anything is
    traced.

    That is the main thread, if it makes the call. Otherwise it is a new one, which waits for ever.
    """
    # the number of devices, unlike `is_available()`, does not start CUDA, which forked children could not use
    if find_release() >= (2, 12) or not torch.cuda._is_compiled() or torch.cuda.device_count() > 0:
        return
    if threading.current_thread() is threading.main_thread():
        torch._C._ensureCUDADeviceGuardSet()
        return
    is_kept = threading.Event()
    # it takes no interpreter lock while it waits, so the process can end
    threading.Thread(target=_keep, args=(is_kept,), name="coilwork-absent-device", daemon=True).start()
    is_kept.wait()


def _keep(is_kept: threading.Event) -> None:
    torch._C._ensureCUDADeviceGuardSet()
    is_kept.set()
    threading.Event().wait()
