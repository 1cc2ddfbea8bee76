"""What the reference interpreters of the three IRs share. Needs torch (`pip install
coilwork-ir[interpreter]`).
"""
