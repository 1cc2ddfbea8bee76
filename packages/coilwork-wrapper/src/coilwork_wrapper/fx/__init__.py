"""The FX emitter: a program as a torch.fx.GraphModule."""
