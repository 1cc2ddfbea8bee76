"""Which stages share a kernel."""
