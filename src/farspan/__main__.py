"""`python -m farspan` is the command line."""

from farspan.cli import main

main()
