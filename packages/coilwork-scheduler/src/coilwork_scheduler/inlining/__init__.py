"""Which producers are computed inside their consumers."""
