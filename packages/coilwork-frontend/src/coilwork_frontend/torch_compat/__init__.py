"""Every use of torch's private API, and the supported range of torch: only here do versions differ.

Open `versions.py` first. `aot_autograd.py` runs AOTAutograd; the other files hold one part of torch each.
"""
