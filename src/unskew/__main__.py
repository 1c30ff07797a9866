"""`python -m unskew`."""

from unskew.cli import main

main()
