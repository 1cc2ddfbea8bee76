"""Long reductions to few results, done in pieces that fill a GPU."""
