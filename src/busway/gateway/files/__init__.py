"""The file door: the bus as a file system, for everything that can open, read, write and poll a file."""
