"""Where in the program a collective was called."""

from __future__ import annotations

from fsdp_doctor.subjects.flight import CallFrame, CallSite

_TORCH = ("/torch/", "\\torch\\", "/importlib/", "<frozen", "typing_extensions.py")
_INSTALLED = ("site-packages", "dist-packages", "/lib/python3")


def user_frame(site: CallSite) -> CallFrame | None:
    """The innermost frame of the program; of an installed library, or at all, where there is none."""
    outside = [f for f in site if not any(part in f.file for part in _TORCH)]
    own = [f for f in outside if not any(part in f.file for part in _INSTALLED)]
    return next(iter(own or outside or site), None)


def place(site: CallSite) -> str:
    """Such as "train_step (train.py:118)"."""
    frame = user_frame(site)
    return "" if frame is None else f"{frame.function} ({frame.file}:{frame.line})"
