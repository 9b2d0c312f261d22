"""What every test can rely on."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts `make test &` and nohup's commands deaf to Ctrl-C, and children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
