"""Write a recording: note what the providers ask of a source, redact it, save it whole or not at all."""

from fsdp_doctor.facts.recording.contents import contents, with_ranks
from fsdp_doctor.facts.recording.write import NotSaved, Saved, refuse_existing, write

__all__ = ["NotSaved", "Saved", "contents", "refuse_existing", "with_ranks", "write"]
