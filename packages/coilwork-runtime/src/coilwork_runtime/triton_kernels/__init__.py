"""Triton kernels: compiled in worker processes, launched through the driver, tuned, or interpreted.

Open `triton_builder.py` first: from text to a launcher. `compilation.py` and `worker.py` compile, `launch.py`
calls, `autotune/` chooses a configuration, `triton_interpreter.py` runs kernels on a CPU.
"""
