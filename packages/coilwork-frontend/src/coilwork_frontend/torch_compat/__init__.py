"""Every use of torch's private API, and the supported range of torch: here alone do versions differ.

Open `versions.py` first. `autograd.py` calls AOTAutograd; the other files hold one part of torch each.
"""
