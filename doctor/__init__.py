"""fsdp-doctor: names the cause, the rank and the fix when PyTorch FSDP training fails."""

from __future__ import annotations

__version__ = "0.1.0"
