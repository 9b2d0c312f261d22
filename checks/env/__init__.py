"""Checks of driver, CUDA, torch, NCCL and the Python environment."""
