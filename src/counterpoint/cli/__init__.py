"""The command line."""

from counterpoint.cli.main import main

__all__ = ["main"]
