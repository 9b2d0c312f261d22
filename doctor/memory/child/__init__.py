"""Runs one training configuration on fake tensors in a process of its own and writes what it allocates.

Imports the standard library and torch only, and is run by path, so that any Python with torch can be asked.
"""
