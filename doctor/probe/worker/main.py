"""One rank from its start to its end, in the stages of `fsdp_doctor.subjects.probe.STAGES`."""

from __future__ import annotations

import json
import os

from .measuring import Measuring


def main(path: str) -> None:
    """Run the job in the file `path` and end the process: 0 after the last stage, 1 after an error."""
    with open(path) as file:
        rank = Measuring(json.load(file))
    try:
        rank.connect()
        rank.measure()
        rank.journal.stage("done")
        rank.meeting.part()
    except BaseException as error:
        rank.journal.error(error)
        # Ending at once closes the connections, so that partners learn of it; cleaning up could hang.
        os._exit(1)
    os._exit(0)
