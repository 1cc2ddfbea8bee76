"""The lowering rules, one module per family of operators. Each exports `RULES`."""
