"""What every test can rely on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

INTEGRATION = Path(__file__).parent / "integration"
RERUNS = 2
"""Of a test that starts ranks: they measure time and keep deadlines on a machine that others use too."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts `make test &` and nohup's commands deaf to Ctrl-C, and children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of real ranks a second and a third look, each reported."""
    for item in items:
        if INTEGRATION in item.path.parents:
            item.add_marker(pytest.mark.flaky(reruns=RERUNS, reruns_delay=2))
