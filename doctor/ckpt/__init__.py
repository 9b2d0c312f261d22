"""Checkpoints on disk: read without running them, compared with what will load them, converted."""
