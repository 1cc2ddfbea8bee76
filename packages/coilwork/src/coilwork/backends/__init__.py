"""Our back ends, `cpu.py` and `cuda.py`, and `registry.py`, which finds those that are installed.

Each is one value of the form `coilwork_ir.backend.Backend`, registered under the entry point group
`coilwork.backends` like anyone's.
"""
