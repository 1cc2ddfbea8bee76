"""Calls that are looked at while they run: beside eager (`check`), and for NaN and infinities (`check_nan`, `check_inf`)."""
