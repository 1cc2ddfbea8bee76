"""`python -m coilwork_tools.demo`: a model compiled, checked and measured beside eager and Inductor.
`worker.py` is the process that measures."""
