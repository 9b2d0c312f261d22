"""One thin module per command: parse, call, render, exit."""
