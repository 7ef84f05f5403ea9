"""The words that one types: each command is one call below."""

from collectives.cli.commands import app, main

__all__ = ["app", "main"]
