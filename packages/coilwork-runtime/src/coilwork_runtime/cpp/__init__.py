"""C++ kernels: compiler, build, load and launch.

Open `cpp_builder.py` first: from text to a launcher. `toolchain.py` is the compiler and its flags, and
`launch.py` calls a kernel.
"""
