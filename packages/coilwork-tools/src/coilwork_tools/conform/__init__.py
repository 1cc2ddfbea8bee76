"""Show that an installed back end keeps its contract.

Open `kits.py` first: it runs all conformance kits. `command.py` is the command around that.
"""
