"""Matrix products as loops: which calls become sums of products that kernels of ours compute."""
