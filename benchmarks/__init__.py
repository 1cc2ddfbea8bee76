"""Models, measurements and reports: `python -m benchmarks run`. See `benchmarks/README.md`."""
