"""`python -m coilwork_tools.demo`: a model compiled, checked and measured beside eager and TorchInductor.

Open `__main__.py` first. `worker.py` is the process that measures, and has the text it reads.
"""
