"""Checks of an FSDP wrap plan."""
