"""Measurements, each a ratio within one run on one machine. `python -m benchmarks` runs all, `-m benchmarks.NAME` one."""
