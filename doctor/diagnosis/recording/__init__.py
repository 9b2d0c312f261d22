"""Running a command so that everything needed is there when it fails or hangs."""
