"""What every test can rely on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import Phase, settings

TESTS = Path(__file__).parent
PROCESSES = tuple(
    TESTS / name
    for name in ("integration", "unit/cli", "unit/ranks", "unit/test_process.py", "unit/facts/test_live.py",
                 "unit/facts/test_nvml_child.py", "unit/facts/test_torch_child.py")
)  # fmt: skip
RERUNS = 2
"""Of a test that starts processes with deadlines, on a machine that others use too."""

# The same examples in every run, and a failure is told as it was met: shrinking one traces every line before Python 3.12,
# and runs into the test's limit. HYPOTHESIS_PROFILE=default looks at others, and shrinks.
settings.register_profile("suite", derandomize=True, deadline=None, phases=(Phase.explicit, Phase.generate))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts `make test &` and nohup's commands deaf to Ctrl-C, and children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Know the marks of plugins that may be missing: their tests then run once, and for as long as they take."""
    for mark in ("flaky: tried again (pytest-rerunfailures)", "timeout: has a limit (pytest-timeout)"):
        config.addinivalue_line("markers", mark)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of real processes a second and a third look, each reported."""
    for item in items:
        if not {item.path, *item.path.parents}.isdisjoint(PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=RERUNS, reruns_delay=2))
