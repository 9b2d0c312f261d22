"""Programs that ask what can hang or crash: NVML on a sick GPU, and an import of the user's torch.

Each is a script of its own that prints one JSON object per line; it is run, never imported.
"""
