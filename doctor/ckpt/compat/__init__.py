"""Does it load? A checkpoint and a target in, every obstacle and one answer out.

`assess` asks each rule module about each way of loading that is judged; all of it is pure.
"""

from fsdp_doctor.ckpt.compat.assess import assess

__all__ = ["assess"]
