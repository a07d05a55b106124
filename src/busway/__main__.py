"""`python -m busway` is the command line."""

from busway.cli import main

main()
