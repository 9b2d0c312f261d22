"""Checks of a replayed memory timeline."""
