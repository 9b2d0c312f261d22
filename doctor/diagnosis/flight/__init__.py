"""Flight Recorder dumps: read safely, compared over the ranks, with a conclusion per cause.

`read` takes files and folders, `judge` draws the conclusions, `conclusions` gives them in the form in which
the rest of a diagnosis speaks; `looks_like_dump` tells a dump by its name and first bytes.
"""

from fsdp_doctor.diagnosis.flight.names import looks_like_dump, rank_of
from fsdp_doctor.diagnosis.flight.reading import read
from fsdp_doctor.diagnosis.flight.told import conclusions, inputs, rank_states, recorder_conclusions
from fsdp_doctor.diagnosis.flight.verdict import judge

__all__ = [
    "conclusions",
    "inputs",
    "judge",
    "looks_like_dump",
    "rank_of",
    "rank_states",
    "read",
    "recorder_conclusions",
]
