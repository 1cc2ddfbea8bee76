"""Put small kernels of one kind that do not wait for each other into one launch.

Open `gather.py` first: it finds the calls. `kind.py` says which kernels are of one kind, `merge.py` makes the
kernel, `open_sizes.py` one text for several sizes.
"""
