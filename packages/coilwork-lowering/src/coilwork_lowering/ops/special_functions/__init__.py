"""Special functions: series, tables of them, and recurrences."""
