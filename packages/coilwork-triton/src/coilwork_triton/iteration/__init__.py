"""The iteration space: tiles, positions, masks."""
