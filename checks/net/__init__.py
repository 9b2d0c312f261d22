"""Checks of TCP interfaces, names and RDMA adapters."""
