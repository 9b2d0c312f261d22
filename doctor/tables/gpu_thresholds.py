"""Limits that separate a healthy GPU from a sick one, each with where it comes from."""

from __future__ import annotations

CHECKED_ON = "2026-11"

MIB = 1 << 20

CORRECTED_WARN = 1_000_000
CORRECTED_FAIL = 20_000_000
"""Corrected ECC errors since the driver loaded. Azure health checks: 20,000,000 for DRAM."""
SRAM_CORRECTED_WARN = 10_000
"""Azure health checks."""
REMAP_UNCORRECTABLE_FAIL = 512
"""Rows remapped for uncorrectable errors. Azure health checks; the spare rows end soon after."""
RETIRED_WARN = 15
RETIRED_FAIL = 63
"""Retired pages of GPUs before Ampere. DCGM's soft and hard limits."""

MARGIN_WARN = 10
MARGIN_FAIL = 5
"""Degrees Celsius left to the slowdown temperature."""

POWER_FAIL_FRACTION = 0.8
"""An enforced power limit below this part of the default costs more than a tenth of the clock."""
POWER_TOLERANCE_MW = 1000
"""Rounding of the limit by the board."""
CLOCK_FRACTION = 0.97
"""An application clock below this part of what it should be counts as lowered."""
CLOCK_LOADED_FRACTION = 0.5
"""A GPU whose SM clock is above this part of the maximum is at work."""
UTILIZATION_LOADED = 50
"""Per cent from which on a GPU is at work, whatever its clocks are lowered to."""

HELD_WARN = 500 * MIB
"""Memory in use by others, in bytes. An empty CUDA context takes 300 to 500 MiB."""
DRIVER_RESERVE = 1200 * MIB
"""What MemoryInfo version 1 may count as used on an idle GPU (615 MiB on an H200)."""
FREE_FAIL_FRACTION = 0.1
"""With less than this part of the memory free no training run fits."""
MEMORY_TOLERANCE = 0.02
"""Equal GPUs differ by less than this part of their memory."""
SMALL_MEMORY_FRACTION = 0.25
"""A GPU with less than this part of the largest one's memory drives a display, not a rank."""
