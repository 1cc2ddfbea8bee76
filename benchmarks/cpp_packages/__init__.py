"""Packages that C++ loads without Python, beside AOTInductor's: seconds to load and call once, microseconds
of a steady call (of the host, and until its work is done), bytes of the file.

    python -m benchmarks.cpp_packages [--model blocks] [--layers 12] [--width 64] [--rows 4] [--device cpu]

Each side exports in a process of its own and runs in a C++ program of its own, on one thread. A small width
leaves the host's work to be seen. `--model gpt --width 768 --rows 256` is GPT-2 in `bfloat16`. `--target
sm_90` exports ours for a GPU without looking at it.
"""
