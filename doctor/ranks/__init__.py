"""The ranks of one job talk to each other: over TCP, by the standard library alone, whatever torch does."""
