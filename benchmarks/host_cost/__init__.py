"""What a call costs the host of a GPU, beside the least that the driver and torch's own functions cost there.

    python -m benchmarks.host_cost -o docs/benchmarks/h200-host.md

Floors are loops in C++ over `cuLaunchKernel` and over functions of torch's C shim, without anything around
them. Programs are chains of launches on small tensors, compiled: what one launch more costs is the difference
of two lengths. All compile at the same time, in fresh processes with empty caches; then each has the machine
to itself.
"""
