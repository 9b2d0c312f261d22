"""`fsdp-doctor` as a rank of a job, whose worker has the fault that SABOTAGE names."""

from __future__ import annotations

import os
import sys

from fsdp_doctor.cli import probe_rank
from fsdp_doctor.cli.main import main
from fsdp_doctor.probe import member
from tests.support.probing import SABOTAGE

if __name__ == "__main__":
    member.WORKER = SABOTAGE
    if os.environ["SABOTAGE"].startswith("permute-reordered"):
        # Ranks on CPU have no GPUs to change; all else of the second round is real.
        probe_rank.NCCL = probe_rank.GLOO  # type: ignore[misc]
        probe_rank.next_gpus = lambda there: [1, 0]
    main(sys.argv[1:])
