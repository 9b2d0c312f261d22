"""What reads dumps that may be hostile: standard library only, in a child with a memory limit and a deadline.

`start.py` is run as a script. A dump is a pickle from a shared disk: whoever can write there could otherwise
run code (a class), exhaust memory (a huge memo index) or the stack (nested keys) of whoever diagnoses it.
"""
