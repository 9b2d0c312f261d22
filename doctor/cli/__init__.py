"""The command line: one thin module per command that parses, calls, renders and returns the exit status."""
