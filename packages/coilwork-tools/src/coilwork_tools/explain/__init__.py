"""What a compilation did: every stage's text (`trace.py`), a report, the seconds of stages, demands on sizes
that were added."""
