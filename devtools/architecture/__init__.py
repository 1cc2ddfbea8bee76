"""The rules of the repository's structure, as checks on its source text.
`integration_tests/test_architecture.py` runs them.

Each check is a function from the parsed sources to the violations it finds; nothing is imported or run.
"""
