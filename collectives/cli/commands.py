"""The command line: its commands, of which `list` and `env` are here."""

import os
import shutil
import sys
import textwrap
from typing import Annotated

import typer
import typer.core

from collectives.backends import machine
from collectives.cli import bus as cli_bus
from collectives.cli import check_training as cli_check_training
from collectives.cli import cluster as cli_cluster
from collectives.cli import diagnose as cli_diagnose
from collectives.cli import lab as cli_lab
from collectives.cli import matrix as cli_matrix
from collectives.cli import practice as cli_practice
from collectives.cli import run as cli_run
from collectives.cli import terminal
from collectives.cli import verify as cli_verify
from collectives.course import chapters
from collectives.course.console import check_stdout, print_text


class _Commands(typer.core.TyperGroup):
    """Each command returns its exit status, or None for 0."""

    def parse_args(self, ctx, args):
        if "--help" in args or len(args) < 2:  # some commands answer with their help
            terminal.make_help_readable(self.commands.values())
        return super().parse_args(ctx, args)

    def invoke(self, ctx):
        try:
            try:
                status = super().invoke(ctx)
            finally:
                if sys.stdout is not None:  # it was closed before we began
                    sys.stdout.flush()
            raise typer.Exit(status or 0)
        except KeyboardInterrupt:
            print("\ninterrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        except BrokenPipeError:  # the reader has seen enough, for example `head`
            raise
        except OSError as error:
            try:
                check_stdout(error)
            except ValueError as fault:
                raise typer.Exit(terminal.failed("collectives", fault)) from None
            raise


app = typer.Typer(
    cls=_Commands,
    help="Learn the collectives of torch.distributed by running them.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def main() -> None:
    app(prog_name="collectives")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"collectives {machine.version() or '(not installed)'}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        fault = ValueError("the current folder is gone: change to one that exists.")
        raise typer.Exit(terminal.failed("collectives", fault)) from None


@app.command("list")
def list_lessons(
    chapter: Annotated[
        str | None, typer.Argument(metavar="[CHAPTER]", help="Only the lessons of this chapter.")
    ] = None,
) -> int:
    """List the chapters and their lessons in reading order. `run` takes each of these names."""
    try:
        wanted = [chapters.find(chapter)] if chapter is not None else list(chapters.read().values())
    except ValueError as error:
        return terminal.failed("collectives list", error)
    width = max(len(name) for one in wanted for name in one.names)
    texts = []
    for one in wanted:
        lines = [_hanging(f"  {lesson.name:<{width}}  ", lesson.summary) for lesson in one.lessons]
        texts.append("\n".join([_hanging("", f"{one.name}: {one.title}"), *lines]))
    print_text("\n\n".join(texts))
    return 0


def _hanging(name: str, text: str) -> str:
    """A text behind a name, in lines as wide as the terminal; in a file or pipe, one line."""
    if not sys.stdout.isatty():
        return name + text
    columns = shutil.get_terminal_size().columns
    indent = len(name) if len(name) <= columns // 2 else 4
    block = textwrap.indent(textwrap.fill(text, columns - indent), " " * indent)
    return name + block[indent:] if indent == len(name) else f"{name.rstrip()}\n{block}"


@app.command("env")
def env() -> None:
    """Print what a bug report needs: versions, GPUs, cores, and which backends work here."""
    for name, value in machine.facts():
        print_text(f"{name:<12} {value}")


app.command("run", no_args_is_help=True, epilog=cli_run.STATUSES)(cli_run.run)
app.command("matrix", epilog=cli_matrix.STATUSES)(cli_matrix.matrix)
app.command("verify", epilog=cli_verify.STATUSES, no_args_is_help=True)(cli_verify.verify)
app.command(
    "diagnose",
    epilog=cli_diagnose.STATUSES,
    no_args_is_help=True,
    context_settings={"allow_interspersed_args": False},  # what follows a command is the command's
)(cli_diagnose.diagnose)
app.command("check-training", epilog=cli_check_training.STATUSES, no_args_is_help=True)(
    cli_check_training.check_training
)
app.command("lab", epilog=cli_lab.STATUSES, no_args_is_help=True)(cli_lab.lab)
app.command("cluster", epilog=cli_cluster.STATUSES)(cli_cluster.cluster)
app.add_typer(cli_practice.app, name="practice")

bench = typer.Typer(help="Measure.", no_args_is_help=True, rich_markup_mode="rich")
bench.command("bus", epilog=cli_bus.STATUSES)(cli_bus.bus)
app.add_typer(bench, name="bench")
