"""The processors' governor and frequency, and the clock that programs read."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.host._reading import has_gpus
from fsdp_doctor.engine.job import USES
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Confidence, Finding, Fix, Owner, Risk, Row, Subject, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.tables.host_thresholds import CLOCKSOURCES_FINE, CLOCKSOURCES_SLOW, CPU_MHZ_LOW, GOVERNOR

HIDDEN = "the kernel shows no cpufreq governor, as in virtual machines"


@check("HST017", Row.SLOW, needs=(Host,), uses=USES, tags=("cpu",))
def governor(facts: Facts, options: Options) -> Iterator[Finding]:
    """The processors of a GPU machine are not run by the performance governor

    What: Reads the cpufreq governors. Another one than "performance", or several at once, is a warning on
        a machine with GPUs; on others it is only said.
    Why: A training process wakes for short bursts between kernels. A governor that lowers the frequency in
        between makes launches slow and uneven, and the slowest rank sets the pace.
    Fix: Set the performance governor on training machines.
    Sources: Linux kernel documentation, admin-guide/pm/cpufreq; gcm health checks.
    """
    governors = facts[Host].governors
    if not governors:
        yield skip(HIDDEN, enable="/sys/devices/system/cpu/cpu*/cpufreq")
        return
    named = ", ".join(sorted(set(governors)))
    if set(governors) == {GOVERNOR}:
        yield ok("every processor under the performance governor")
        return
    command = "sudo cpupower frequency-set -g performance"
    fix = Fix("Set the performance governor", command, Risk.NEEDS_ROOT, Owner.ADMIN)
    mixed = " (mixed)" if len(set(governors)) > 1 else ""
    found, subject = f"CPU frequency governor {named}{mixed}", Subject(variable="scaling_governor")
    if has_gpus(facts):
        yield warn(found, "performance on every processor", subject=subject, fix=fix)
    elif mixed:
        yield info(found, expected="one governor", subject=subject, fix=fix)
    else:
        yield ok(f"{found}, on a machine without GPUs")


@check("HST018", Row.SLOW, needs=(Host,), uses=USES, tags=("cpu",))
def frequency(facts: Facts, options: Options) -> Iterator[Finding]:
    """The processors run slowly although nothing lets them idle

    What: Reads the mean frequency of /proc/cpuinfo under the performance governor; below 1200 MHz is a
        warning. Under other governors a low frequency is idling.
    Why: Processors held back by heat, a power limit or the BIOS launch kernels slowly and make a rank late
        in every step.
    Fix: Look for thermal throttling in the kernel log, and at the BIOS power profile and power supplies.
    Sources: proc(5), /proc/cpuinfo; gcm health checks (floor of 1498 MHz).
    """
    host = facts[Host]
    if host.cpu_mhz is None:
        yield skip("/proc/cpuinfo names no frequency", enable="x86 processors")
        return
    found = f"processors at {host.cpu_mhz:.0f} MHz on average"
    if set(host.governors) == {GOVERNOR} and host.cpu_mhz < CPU_MHZ_LOW and has_gpus(facts):
        yield warn(
            f"{found} under the performance governor",
            f"above {CPU_MHZ_LOW:.0f} MHz",
            fix=Fix(
                "Look for throttling and at the BIOS power profile",
                "sudo turbostat --quiet --interval 5 --num_iterations 1",
                Risk.NEEDS_ROOT,
                Owner.ADMIN,
            ),
            confidence=Confidence.MEDIUM,
        )
    else:
        yield ok(found)


@check("HST019", Row.SLOW, needs=(Host,), tags=("cpu",))
def clocksource(facts: Facts, options: Options) -> Iterator[Finding]:
    """The kernel reads time from a slow clock

    What: Reads the current clocksource. hpet, acpi_pm and jiffies are slow; tsc, arch_sys_counter and the
        clocks of hypervisors are right for their machines.
    Why: Python, NCCL and the profiler read the time thousands of times in a step. With hpet each read is a
        system call of about a microsecond, and timings become uneven between ranks. The kernel changes to
        it when it finds the TSC unstable, which hints at the BIOS.
    Fix: Update the BIOS; boot with tsc=reliable once the TSC is known to be sound.
    Sources: Linux kernel documentation, timers/timekeeping; gcm health checks.
    """
    name = facts[Host].clocksource
    if not name:
        yield skip("the clocksource could not be read", enable="/sys/devices/system/clocksource")
    elif name in CLOCKSOURCES_SLOW:
        yield warn(
            f"clocksource {name}: {CLOCKSOURCES_SLOW[name]}",
            "tsc (x86) or arch_sys_counter (Arm)",
            subject=Subject(variable="clocksource"),
            fix=Fix(
                "See in the kernel log why the TSC was given up, and update the BIOS",
                "dmesg | grep -i -e clocksource -e tsc",
                owner=Owner.ADMIN,
            ),
        )
    elif name in CLOCKSOURCES_FINE:
        yield ok(f"clocksource {name}")
    else:
        yield info(f"clocksource {name} is not one that is known here", expected="tsc or arch_sys_counter")
