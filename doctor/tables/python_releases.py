"""When each Python release stops getting security fixes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from fsdp_doctor.tables.versions import Version

CHECKED_ON = "2026-08-31"

# Python developer's guide, "Status of Python versions".
END_OF_LIFE: Mapping[Version, date] = {
    (3, 7): date(2023, 6, 27),
    (3, 8): date(2024, 10, 7),
    (3, 9): date(2025, 10, 31),
    (3, 10): date(2026, 10, 31),
    (3, 11): date(2027, 10, 31),
    (3, 12): date(2028, 10, 31),
    (3, 13): date(2029, 10, 31),
    (3, 14): date(2030, 10, 31),
}
