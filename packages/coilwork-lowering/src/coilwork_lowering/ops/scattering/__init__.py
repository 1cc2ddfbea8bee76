"""Writes and sums at positions that come from tensors: scatters, embeddings, bags of rows."""
