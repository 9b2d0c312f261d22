"""Benchmarks: they print figures, and no test depends on them."""
