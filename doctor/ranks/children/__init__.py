"""Programs that run as children of a rank; they import the standard library only."""
