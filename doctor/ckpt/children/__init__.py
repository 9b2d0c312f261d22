"""Run by path in the interpreter that has torch: the standard library and torch only."""
