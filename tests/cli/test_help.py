"""What a terminal shows of each command's help: narrow and plain, and wide with colours."""

import pytest
from rich.ansi import AnsiDecoder
from typer import rich_utils
from typer.main import get_command
from typer.testing import CliRunner

from collectives.cli import app
from collectives.pictures.colours import contrast

COMMANDS = ["", *get_command(app).commands, "bench bus", "practice try"]


def help_of(command: str, columns: int, colours: bool, monkeypatch) -> str:
    monkeypatch.setattr(rich_utils, "MAX_WIDTH", columns)
    monkeypatch.setattr(rich_utils, "COLOR_SYSTEM", "256" if colours else None)
    monkeypatch.setattr(rich_utils, "FORCE_TERMINAL", colours)
    monkeypatch.setenv("COLUMNS", str(columns))
    runner = CliRunner(charset="utf-8" if colours else "ascii")
    environ = {"LANG": "C", "NO_COLOR": None if colours else "1", "TERM": "xterm-256color"}
    result = runner.invoke(app, [*command.split(), "--help"], env=environ, color=colours)
    assert result.exit_code == 0
    return "\n".join(line.rstrip() for line in result.output.splitlines())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command or "all")
def test_60_plain_columns_are_as_they_were_seen(command, snapshot, monkeypatch):
    found = help_of(command, 60, False, monkeypatch)
    assert found.isascii()
    assert max(map(len, found.splitlines())) <= 60
    assert found == snapshot


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command or "all")
def test_80_columns_have_colours_that_can_be_read_on_white(command, snapshot, monkeypatch):
    found = help_of(command, 80, True, monkeypatch)
    styles = [span.style for line in AnsiDecoder().decode(found) for span in line.spans]
    assert not any(style.dim for style in styles)
    colours = {style.color.get_truecolor().hex for style in styles if style.color}
    assert colours
    assert [one for one in colours if contrast(one, "#ffffff") < 4.5] == []
    assert found == snapshot
