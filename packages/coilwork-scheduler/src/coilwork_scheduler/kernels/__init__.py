"""From groups of stages to canonical kernels."""
