"""Every use of torch's private API in lowering: here alone do versions differ.

Open `operators.py` first; each file holds one part of torch.
"""
