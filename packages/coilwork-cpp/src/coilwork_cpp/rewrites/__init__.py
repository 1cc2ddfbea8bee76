"""From one kernel to kernels that are easier to write as loops."""
