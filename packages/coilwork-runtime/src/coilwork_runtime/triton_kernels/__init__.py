"""Triton kernels: compiled in worker processes, launched through the driver, tuned, or interpreted.

Open `build.py` first: from source to a launcher. `pool.py` and `worker.py` compile, `launch.py` calls,
`tuning.py` chooses among candidates, `searching.py` and `descent.py` search, `interpreted.py` runs on a CPU.
"""
