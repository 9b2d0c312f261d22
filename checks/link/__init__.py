"""Checks of NVLink, NVSwitch, P2P and PCIe."""
