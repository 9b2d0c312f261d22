"""`fsdp-doctor ckpt …`: checkpoints on disk."""
