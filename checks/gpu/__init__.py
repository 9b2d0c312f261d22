"""Checks of health and state of GPUs."""
