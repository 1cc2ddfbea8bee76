"""Explain what a compilation did.

Open `trace_folder.py` first: every stage's text. `report.py` is the summary of a graph, with the seconds of
stages and the demands on sizes that compiling added. `compile_coverage.py` lists what is not compiled.
"""
