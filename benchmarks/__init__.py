"""Measurements, each a ratio within one run. `python -m benchmarks` runs them all, `-m benchmarks.NAME` one."""
