"""The Python emitter: a program as a readable module that also runs by itself.

Open `module.py` first. `instructions.py` has a case for each instruction, checks of inputs among
them; `scope.py` has names and expressions, `sample_inputs.py` the inputs of a run of the file.
"""
