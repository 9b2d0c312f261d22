"""Signatures of what failed jobs print."""
