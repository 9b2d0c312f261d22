"""Checks of the ranks of one job against each other."""
