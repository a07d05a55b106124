"""What the bus as files costs: the mount beside a C file system of the same shape. See README.md, "The file door"."""
