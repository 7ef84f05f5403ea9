"""The command line: each command parses its words and calls one function of another room."""

from collectives.cli.commands import app, main

__all__ = ["app", "main"]
