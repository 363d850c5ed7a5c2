"""The command line. One module per group of commands; each imports what it needs when it runs."""

from workers.cli.root import main

__all__ = ["main"]
