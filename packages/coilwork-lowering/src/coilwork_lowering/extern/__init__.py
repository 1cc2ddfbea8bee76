"""The fallback that serves every operator: a call of its kernel inside the compiled program.

Open `calls.py` first. `arguments.py` converts what the call is given, `nesting.py` what it returns;
`asynchronous.py` says what it goes on using, `quantized.py` gives quantised tensors their type.
"""
