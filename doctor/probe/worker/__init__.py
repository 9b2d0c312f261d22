"""What runs as one rank of a probe: standard library and torch only, for any interpreter from Python 3.8 on.

`start.py` is run as a script and loads this folder under a name of its own, so that the interpreter needs
no fsdp-doctor and cannot take another one's modules for these.
"""
