"""A training script, unmodified, run as rank 0 of N: in a child, on a GPU or on fake tensors."""
