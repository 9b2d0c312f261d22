"""`fsdp-doctor` as a rank of a job, whose worker has the fault that SABOTAGE names."""

from __future__ import annotations

import sys

from fsdp_doctor.cli.main import main
from fsdp_doctor.probe import member
from tests.support.probing import SABOTAGE

if __name__ == "__main__":
    member.WORKER = SABOTAGE
    main(sys.argv[1:])
