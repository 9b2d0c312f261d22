"""The folder that `run` puts on PYTHONPATH; nothing here is imported by fsdp-doctor itself."""
