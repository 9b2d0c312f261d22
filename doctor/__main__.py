"""`python -m fsdp_doctor`."""

from __future__ import annotations

from fsdp_doctor.cli.main import main

if __name__ == "__main__":
    main()
