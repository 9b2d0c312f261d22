"""Pages of the kernel: fragmentation and huge pages."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_doctor.checks.host._reading import has_gpus
from fsdp_doctor.engine.job import USES
from fsdp_doctor.engine.options import Options
from fsdp_doctor.engine.spec import check
from fsdp_doctor.findings import Confidence, Finding, Fix, Owner, Risk, Row, Subject, info, ok, skip, warn
from fsdp_doctor.subjects.fact import Facts
from fsdp_doctor.subjects.host import Host
from fsdp_doctor.tables.host_thresholds import (
    FRAGMENTATION_MEMORY,
    HUGE_ORDER,
    HUGE_PAGE_DEFAULT,
    HUGE_RESERVED_PERCENT,
)
from fsdp_doctor.tables.units import percent, size

PAGE = 4096


@check("HST020", Row.SLOW, needs=(Host,), uses=USES, tags=("memory",))
def fragmented(facts: Facts, options: Options) -> Iterator[Finding]:
    """Free memory is in pieces too small for large buffers

    What: Reads /proc/buddyinfo: a NUMA node whose Normal zone has no free block of 2 MiB or more left,
        on a machine with GPUs and 64 GiB or more.
    Why: Pinned buffers, RDMA registrations and huge pages want contiguous memory. Without it the kernel
        compacts while the rank waits, and cudaHostAlloc or memory registration is slow or fails.
    Fix: Drop the page cache and compact memory before the run.
    Sources: proc(5), /proc/buddyinfo; Linux kernel documentation, sysctl/vm, compact_memory; gcm.
    """
    host = facts[Host]
    zones = [(node, orders) for node, zone, orders in host.free_blocks if zone == "Normal" and orders]
    if not zones:
        yield skip("the free lists could not be read", enable="/proc/buddyinfo")
        return
    bad = [(n, o) for n, o in zones if not any(c > 0 for c in o[HUGE_ORDER:])]
    if not bad or not has_gpus(facts) or (host.memory_total or 0) < FRAGMENTATION_MEMORY:
        yield ok(f"free blocks of 2 MiB or more on {len(zones) - len(bad)} of {len(zones)} nodes")
        return
    nodes = ", ".join(n.removeprefix("Node").strip() for n, _ in bad)
    free = sum(max(c, 0) << i for _, orders in bad for i, c in enumerate(orders[:HUGE_ORDER])) * PAGE
    yield warn(
        f"no free block of 2 MiB or more on NUMA node {nodes}; {size(free)} free in smaller pieces",
        "some free blocks of 2 MiB (order 9 and 10 of /proc/buddyinfo)",
        fix=Fix(
            "Drop the page cache and compact memory",
            "sudo sysctl -w vm.drop_caches=3 vm.compact_memory=1",
            Risk.NEEDS_ROOT,
            Owner.ADMIN,
        ),
        confidence=Confidence.MEDIUM,
    )


@check("HST021", Row.OOM, needs=(Host,), uses=USES, tags=("memory",))
def huge_pages(facts: Facts, options: Options) -> Iterator[Finding]:
    """Huge pages are set aside for programs that do not come

    What: Compares the memory reserved as huge pages (HugePages_Total) with the memory of the machine;
        half of it or more is a warning. The setting of transparent huge pages is said.
    Why: PyTorch does not use reserved huge pages. What they hold is missing to ranks, page cache and
        pinned buffers, while free shows it as used by nobody.
    Fix: Give the pages back with vm.nr_hugepages, and remove hugepages= from the boot arguments.
    Sources: Linux kernel documentation, admin-guide/mm/hugetlbpage and transhuge.
    """
    host = facts[Host]
    if host.huge_pages_total is None:
        yield skip("the number of huge pages could not be read", enable="/proc/meminfo")
        return
    reserved = max(host.huge_pages_total, 0) * (host.huge_page_size or HUGE_PAGE_DEFAULT)
    transparent = f"; transparent huge pages: {host.transparent_huge_pages or '?'}"
    found = f"{size(reserved)} reserved as huge pages"
    if host.memory_total and percent(reserved, host.memory_total) >= HUGE_RESERVED_PERCENT:
        yield warn(
            f"{found} of {size(host.memory_total)}",
            f"less than {HUGE_RESERVED_PERCENT} % of the memory",
            subject=Subject(variable="vm.nr_hugepages"),
            fix=Fix(
                "Give the huge pages back",
                "sudo sysctl -w vm.nr_hugepages=0",
                Risk.DISRUPTIVE,
                Owner.ADMIN,
            ),
        )
    elif host.transparent_huge_pages == "never" and has_gpus(facts):
        yield info(found + transparent, expected="madvise or always, so that large host buffers can use them")
    else:
        yield ok(found + transparent)
