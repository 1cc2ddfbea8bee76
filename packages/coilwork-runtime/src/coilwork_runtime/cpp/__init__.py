"""C++ kernels: compiler, build, load and launch.

Open `build.py` first: from source to a launcher. `toolchain.py` is the compiler and its flags, `batches.py`
compiles several kernels at once, `launch.py` calls one.
"""
