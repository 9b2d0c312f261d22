"""Measuring the fabric: schedules, statistics, expected values, who is slow, and what a step will cost."""
