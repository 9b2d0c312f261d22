"""What stands before a line's own text, as frameworks and launchers write it."""

from __future__ import annotations

import pytest

from fsdp_doctor.diagnosis.prefixes import Style, strip

OOM = "torch.OutOfMemoryError: CUDA out of memory."


@pytest.mark.parametrize(
    ("line", "rank", "text"),
    [
        (f"[rank3]: {OOM}", 3, OOM),
        (f"[R3] {OOM}", 3, OOM),
        (f"[R3]: {OOM}", 3, OOM),
        # composer: time, rank, process, thread, level, logger
        (f"2024-05-01 10:00:00,123: rank3[4567][MainThread]: ERROR: composer.trainer: {OOM}", 3, OOM),
        (f"INFO:root:{OOM}", None, OOM),
        # an exception's own name is no logger's
        (
            "ERROR: socket.gaierror: [Errno -2] Name or service",
            None,
            "socket.gaierror: [Errno -2] Name or service",
        ),
        ("ERROR: json.decoder.JSONDecodeError: Expecting", None, "json.decoder.JSONDecodeError: Expecting"),
        ("[Reducer3] bucket", None, "[Reducer3] bucket"),
    ],
)
def test_prefix(line: str, rank: int | None, text: str) -> None:
    found = strip(line, Style())
    assert (found.rank, found.text) == (rank, text)
