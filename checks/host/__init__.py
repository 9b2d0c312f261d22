"""Checks of limits, memory, processors and containers."""
