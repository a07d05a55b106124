"""Runs the command line: `python -m busway` is the same as the command `busway`."""

from busway.cli import main

main()
