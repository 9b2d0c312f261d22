"""Checks of checkpoint path and file systems."""
