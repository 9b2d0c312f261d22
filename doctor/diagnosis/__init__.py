"""From what a failed or hanging job left to the cause, the rank and the fix."""
