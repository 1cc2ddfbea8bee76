"""Small programs on a CPU, one or two kernels each: `python -m benchmarks.cpu_programs -o
docs/benchmarks/cpu-programs.md`.
"""
