"""`python -m collectives`: the same as `collectives`."""

from collectives.cli import main

main()
