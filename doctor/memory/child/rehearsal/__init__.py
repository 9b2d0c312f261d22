"""Runs a training script, unmodified, as rank 0 of N. Loaded by path in a child: standard library, torch."""
