"""The file door: mounts the bus as a file system, for programs that can open, read, write and poll files."""
