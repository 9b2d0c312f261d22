"""Starts the ranks of one machine by torch elastic: `python elastic_child.py JOB`. Needs torch alone.

Elastic ends all ranks when one has failed and then calls the first to exit the root cause, which is often a
victim. So this only starts ranks and notes how their processes ended; the ranks' own journals say why.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import sys
import tempfile

PARENT = "FSDP_DOCTOR_PROBE_PARENT"
"""Variable with the process that a rank must not outlive."""
SET_DEATH_SIGNAL = 1


def stay_with_parent() -> None:
    """End when whoever started this ends, however that happens."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
    if str(os.getppid()) != os.environ.get(PARENT, str(os.getppid())):
        os._exit(1)


def main(path: str) -> None:
    """Run the job and write how the ranks' processes ended to `ended.json` beside it."""
    stay_with_parent()
    with open(path) as file:
        job = json.load(file)
    tempfile.tempdir = job["folder"]  # elastic's logs go with the job's folder
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ[PARENT] = str(os.getpid())
    if job["ranks"] > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    options = {
        "min_nodes": 1,
        "max_nodes": 1,
        "nproc_per_node": job["ranks"],
        "run_id": job["name"],
        "rdzv_backend": "c10d",
        "rdzv_endpoint": "127.0.0.1:0",
        "local_addr": "127.0.0.1",
        "max_restarts": 0,
        "monitor_interval": 0.05,
    }
    known = {f.name for f in dataclasses.fields(LaunchConfig)}
    config = LaunchConfig(**{k: v for k, v in options.items() if k in known})
    codes = {}
    try:
        elastic_launch(config, sys.executable)("-B", job["script"], path)
    except ChildFailedError as error:
        codes = {str(rank): failure.exitcode for rank, failure in error.failures.items()}
    target = os.path.join(job["folder"], "ended.json")
    with open(target + ".part", "w") as file:
        json.dump(codes, file)
    os.replace(target + ".part", target)


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here]
    main(sys.argv[1])
