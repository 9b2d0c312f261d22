"""Changed inputs for every reader of what a job or a user left: `python -m tests.fuzz`, or `make fuzz`."""
