"""What shows that an installed back end keeps its contract: `kits.py` runs all kits on it, `command.py` is
the command around that.
"""
