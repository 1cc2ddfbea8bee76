"""Which launches are tried."""
