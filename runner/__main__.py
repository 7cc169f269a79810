"""``python -m runner``: the command line."""

from runner.cli import main

main()
