"""Back ends. Open `registry.py` first: it finds those that are installed; `cpu.py`, `cuda.py` are ours."""
