"""Explain what a compilation did.

Open `trace.py` first: every stage's text. `report.py` is the summary of a graph, `clock.py` counts seconds of
stages, `added_guards.py` finds demands on sizes that compiling added, `commands.py` has the commands.
"""
