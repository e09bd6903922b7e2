"""`python -m statemix` is the `statemix` command."""

from statemix.cli import main

main()
