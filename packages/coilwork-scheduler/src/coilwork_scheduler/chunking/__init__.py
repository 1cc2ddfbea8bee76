"""Large products whose results only loops and further products read, computed chunk by chunk.

Open `chunk_products.py`, the pass, first. `region.py` finds what reads a product, and `chunk_axis.py` the
range along which all of it can be cut. `chunk_barrier.py` keeps what lies before chunks and what lies behind
them out of one kernel.
"""
