"""From scalar graphs to expressions."""
