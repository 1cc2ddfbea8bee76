"""The fallback that serves every operator: a call of its kernel inside the compiled program."""
