"""How much of a checkpoint is read, so that a damaged or hostile one costs bounded time and memory."""

from __future__ import annotations

MIB = 1 << 20
PICKLE_BYTES = 2 << 30
"""Largest pickle that is read: ten million chunks fit."""
PICKLE_MEMORY = 256 * MIB
"""Memory that unpickling may take whatever the pickle's size, and"""
PICKLE_FACTOR = 14
"""… per byte of it. Measured: 5 to 8 for metadata, 10 for small objects."""
GLOBALS = 5000
"""Distinct classes and functions."""
NAME_BYTES = 400
"""Longest name of a global that is kept."""
ZIP_ENTRIES = 200_000
ZIP_DIRECTORY = 256 * MIB
HEADER_BYTES = 100_000_000
"""Of a safetensors file: the format's own limit."""
JSON_BYTES = 64 * MIB
DEPTH = 100
"""Nesting of dictionaries and lists that is followed."""
NODES = 20_000_000
"""Values that are looked at in one pickle."""
KEYS = 2_000_000
"""Tensors and values that are kept."""
KEY_LENGTH = 2000
FILES = 200_000
"""Names of a folder and its subfolders that are listed."""
FOLDER_DEPTH = 3
RANK_FILES = 16_384
"""Files per rank that are opened."""
BLOB_BYTES = 1 * MIB
"""Largest stored object inside a data file that is read for its value."""
BLOBS = 4000
"""Such objects that are read."""
TEXT = 200
"""Characters of a value that are kept."""
PROBLEM_TENSORS = 20
"""Keys that a problem names."""
SPREAD_SECONDS = 600.0
"""Modification times of one save that lie further apart are remarked on."""
RECENT_SECONDS = 300.0
"""A file that changed this recently may still be written."""
