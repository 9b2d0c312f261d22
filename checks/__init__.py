"""The built-in checks, a folder per family. See CONTRIBUTING.md for how to add one."""
