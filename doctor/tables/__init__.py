"""Dated data: versions, products, thresholds. Each module carries `CHECKED_ON` and names its sources."""
