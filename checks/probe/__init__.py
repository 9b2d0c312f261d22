"""Checks of what a probe measured."""
