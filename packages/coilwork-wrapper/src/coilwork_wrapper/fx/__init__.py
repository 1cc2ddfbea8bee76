"""The FX emitter: a program as a `torch.fx.GraphModule`.

Open `emit.py` first. `control.py` has conditionals and loops, `wrapper.py` saves and loads graphs.
"""
