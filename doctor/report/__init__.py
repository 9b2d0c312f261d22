"""Renderers: a report in, text out, nothing else."""
