"""Compiling around a fault of the compiler's: which calls are left to ATen. Open `retries.py` first;
`faults.py` finds the few at fault."""
