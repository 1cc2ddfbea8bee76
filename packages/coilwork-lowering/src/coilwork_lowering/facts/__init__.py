"""Facts about ATen graphs: nothing here changes a graph.

Open `sharing.py` first: whose memory values are in. Each file answers one question, such as what eager's
kernels accept (`accepted_*.py`), which positions are known, or which calls are convolutions.
"""
