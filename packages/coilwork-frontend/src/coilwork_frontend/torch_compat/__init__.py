"""Every use of torch API that is not public, and the supported range of torch, so that versions differ in one
place.
"""
