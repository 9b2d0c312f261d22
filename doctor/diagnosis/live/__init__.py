"""The processes of a job that runs now: who they are, where they stand, and who keeps the others waiting."""
