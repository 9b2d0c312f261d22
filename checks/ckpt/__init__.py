"""Checks of a checkpoint against what will load it."""
