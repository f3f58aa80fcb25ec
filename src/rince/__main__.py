"""`python -m rince` is the command line."""

from rince.cli import main

main()
