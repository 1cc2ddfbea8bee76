"""The fallback that serves every operator: a call of its kernel inside the compiled program.

Open `calls.py` first: arguments, calls and results. `asynchronous.py` says what a call goes on using after it
has returned, and `quantization.py` gives quantised tensors their type.
"""
