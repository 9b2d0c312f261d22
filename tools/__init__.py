"""Tools of the project itself. Not shipped."""
