"""Other configurations than the one that was asked for: what each change saves, and what fits at most."""
