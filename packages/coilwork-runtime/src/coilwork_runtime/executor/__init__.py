"""The executors: programs as bytes, run by a native extension or by an interpreter in Python.

Open `native_program.py` first: from bytes to a callable. `choice.py` says who runs it, `interpreter.py` is
Python's executor, `native/` the extension; `call_plans.py` says how each operator is called.
"""
