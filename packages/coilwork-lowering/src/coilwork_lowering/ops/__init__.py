"""The lowering rules, one module per family of operators, which exports `RULES`; beside them what several families share."""
