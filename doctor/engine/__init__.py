"""Checks as data: how one is declared, found, selected and run."""
