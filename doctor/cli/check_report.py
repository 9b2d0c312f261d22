"""From what `check` found to its report."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fsdp_doctor.cli.check_judging import Judged
from fsdp_doctor.cli.check_request import Request
from fsdp_doctor.cli.common import Settings
from fsdp_doctor.cli.fixes import carry_out, plan
from fsdp_doctor.cli.judging import Judgement
from fsdp_doctor.cli.selecting import expired_suppressions
from fsdp_doctor.cli.sources import Subjects
from fsdp_doctor.cli.version import tool
from fsdp_doctor.engine.registry import registry
from fsdp_doctor.engine.runner import PLUGIN_CODE, broken_plugin_results
from fsdp_doctor.findings import Report, Result
from fsdp_doctor.subjects.launch import Launch


def report(request: Request, settings: Settings, began: float, found: Judged, started: str) -> Report:
    """Everything between what was found and the renderer."""
    results = _with_plugins(found.judgement.merger.results(), settings)
    data = _data(request, found.judgement, found.subjects, found.launch, settings)
    if found.probed is not None:
        families = {r.code[:3] for r in found.probed.results}
        results = (*(r for r in results if r.code[:3] not in families), *found.probed.results)
        data["probe"] = found.probed.data
    if found.resumed is not None and found.resumed.results:
        others = (r for r in results if r.code not in {h.code for h in found.resumed.results})
        results = (*others, *found.resumed.results)
        data["ckpt"] = found.resumed.data
    if request.fix:
        data["fixes"] = carry_out(plan(results), request.yes)
    return Report(
        command="check",
        results=results,
        tool=tool(),
        started=started,
        seconds=time.monotonic() - began,
        data=data,
        unjudged=found.unjudged,
        strict=settings.strict,
    )


def _with_plugins(results: tuple[Result, ...], settings: Settings) -> tuple[Result, ...]:
    broken = broken_plugin_results(registry().broken)
    shown = not any(PLUGIN_CODE.startswith(p.strip().upper()) for v in settings.ignore for p in v.split(","))
    return (*broken, *results) if shown else results


def _data(
    request: Request, judgement: Judgement, subjects: Subjects, launch: Launch | None, settings: Settings
) -> dict[str, object]:
    hosts = sorted(judgement.hosts)
    world = judgement.world_size
    recorded = sorted(judgement.ranks)
    here = {*recorded, *(u.rank for u in judgement.unreadable)}
    missing = [r for r in range(world) if r not in here] if world and world > 1 and subjects.expected else []
    data: dict[str, object] = {
        "target": _target(hosts, judgement, subjects),
        "source": {"kind": subjects.kind, "path": subjects.path, "created": judgement.created},
        "profile": request.profile.value,
        "hosts": hosts,
        "ranks": {"world_size": world, "recorded": recorded, "missing": missing},
        "config": str(settings.config.file) if settings.config.file else None,
        "notes": [*subjects.notes, *expired_suppressions(settings)],
    }
    if launch is not None:
        data["launch"] = {
            "launcher": launch.launcher,
            "command": list(launch.command),
            "nproc_per_node": launch.nproc_per_node,
            "nodes": list(launch.nodes) if launch.nodes else None,
            "script": launch.script,
        }
    return data


def _target(hosts: Sequence[str], judgement: Judgement, subjects: Subjects) -> str:
    names = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    ranks = f", {len(judgement.ranks)} ranks" if len(judgement.ranks) > 1 else ""
    if subjects.kind == "live":
        return f"{names}{ranks}" or "this machine"
    when = f" of {judgement.created}" if judgement.created else ""
    return f"{names or subjects.path or ''} (recording{when}{ranks})"
