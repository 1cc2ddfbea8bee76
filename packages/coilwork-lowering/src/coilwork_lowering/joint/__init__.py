"""The joint graph of forward and backward: what is changed in it, what is saved in between, and how it is
parted in two.
"""
