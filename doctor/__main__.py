"""`python -m fsdp_doctor`."""

from __future__ import annotations

import os
import sys


def _working_folder_last() -> None:
    """Look for modules in the working folder last: a user's json.py or click/ there is not what is meant."""
    try:
        here = os.getcwd()
    except OSError:
        return
    if not getattr(sys.flags, "safe_path", False) and sys.path[:1] in ([here], [""]):
        sys.path.append(sys.path.pop(0))


if __name__ == "__main__":
    _working_folder_last()
    from fsdp_doctor.cli.main import main

    main()
