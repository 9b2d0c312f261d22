"""Rewrite a checkpoint in another format: bytes are copied in blocks, nothing of it is run, no torch."""
