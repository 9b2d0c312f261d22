"""Renderers: each turns a `Report` into a string and does nothing else."""
