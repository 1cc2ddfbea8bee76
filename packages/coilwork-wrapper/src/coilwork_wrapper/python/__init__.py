"""The Python emitter: a program as a readable module that also runs by itself.

Open `module.py` first. `instructions.py` has a case for each instruction, `functions.py` writes `call`,
`checks.py` the checks of inputs, `kernels.py` the kernels.
"""
