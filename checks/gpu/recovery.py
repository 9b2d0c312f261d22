"""What the driver itself asks for: recovery actions and memory repairs."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.gpu._fixes import replace_gpu, reset, unanswered
from fsdp_doctor.engine.devices import by_value, counted, gpu_subject, gpu_words
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Evidence, Finding, Fix, Owner, Risk, Row, fail, info, ok, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.gpu import Gpus
from fsdp_doctor.tables.nvml_codes import RECOVERY_ACTIONS, RESETS

FIELD = "nvmlDeviceGetFieldValues"
REPAIR = "nvmlDeviceGetRepairStatus"


@check("GPU016", Row.NCCL, needs=(Gpus,), tags=("gpu", "hardware"))
def recovery_action(facts: Facts, options: Options) -> Iterator[Finding]:
    """The driver asks for a recovery action.

    What: reads the driver's own recovery action of each GPU (field GPU_RECOVERY_ACTION). A reset that a
        pending row remapping needs anyway is reported there and only mentioned here.
    Why: until the action is done the GPU refuses work, or kills what runs on it: the rank stops and the
        others wait in a collective.
    Fix: do what the driver asks for.
    Sources: NVML API reference (GPU recovery action); DCGM recovery action check; NVIDIA Xid 154.
    """
    gpus = facts[Gpus].present
    known = [(g, g.recovery_action) for g in gpus if g.recovery_action is not None]
    if not known:
        yield unanswered(gpus, FIELD, "the recovery action")
        return
    asked = [(g, a) for g, a in known if a != 0]
    if not asked:
        yield ok(f"{counted(known)}: recovery action none")
    for action, group in by_value(asked).items():
        name, text, command = RECOVERY_ACTIONS.get(
            action, (f"action {action}", "Ask the vendor what this recovery action of the driver means", None)
        )
        remap = (
            [g for g in group if g.remapped is not None and g.remapped.pending] if action in RESETS else []
        )
        if remap:
            yield info(
                f"{gpu_words(remap)}: the driver asks for a {name}, for the pending row remapping",
                subject=gpu_subject(remap),
            )
        rest = [g for g in group if g not in remap]
        if rest:
            yield fail(
                f"{gpu_words(rest)}: the driver asks for recovery action {action} ({name})",
                "recovery action 0 (none)",
                subject=gpu_subject(rest),
                fix=Fix(
                    text,
                    command.format(gpu=",".join(str(g.index) for g in rest)) if command else None,
                    Risk.DISRUPTIVE,
                    Owner.ADMIN,
                ),
                evidence=(Evidence("NVML field 230", str(action)),),
            )


@check("GPU017", Row.NCCL, needs=(Gpus,), tags=("gpu", "hardware", "memory"))
def memory_repair(facts: Facts, options: Options) -> Iterator[Finding]:
    """GPU memory is beyond repair, or a repair waits.

    What: reads the flag for memory that cannot be repaired and the repair status (a channel or row repair
        that runs at the next reset).
    Why: memory that is past repair will end jobs again and again; a waiting repair leaves the bad cells
        in use.
    Fix: reset the GPU for a waiting repair; replace one that is beyond repair.
    Sources: NVML API reference (repair status, unrepairable memory); DCGM unrepairable memory check.
    """
    gpus = facts[Gpus].present
    known = [g for g in gpus if g.unrepairable_memory is not None or g.repair_pending is not None]
    if not known:
        yield unanswered(gpus, REPAIR, "the repair status")
        return
    broken = [g for g in known if g.unrepairable_memory]
    waiting = [g for g in known if g.repair_pending and g not in broken]
    if broken:
        yield fail(
            f"{gpu_words(broken)}: the driver flags unrepairable memory",
            "no unrepairable memory",
            subject=gpu_subject(broken),
            fix=replace_gpu("Take the GPU out of service and have it replaced"),
        )
    if waiting:
        yield warn(
            f"{gpu_words(waiting)}: a memory repair is pending",
            "no repair waits for a reset",
            subject=gpu_subject(waiting),
            fix=reset(waiting),
        )
    if not broken and not waiting:
        yield ok(f"{counted(known)}: no memory repair waits")
