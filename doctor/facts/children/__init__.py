"""Programs that ask what can hang or crash: NVML on a sick GPU, and an import of the user's torch.

Each `*_child.py` is a script, run and never imported; `fsdp_doctor.facts.live` runs them.
"""
