"""Recurrent layers (`nn.RNN`, `nn.GRU`, `nn.LSTM`): one call of a library each, or one loop over the steps.

Begin with `calls.py`, which finds the layers in Dynamo's graphs; `loops.py` has the loops and their
gradients, `library_calls.py` the calls.
"""
