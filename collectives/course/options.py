"""What one can type after `python lessons/NAME.py`."""

import argparse
import sys
from pathlib import Path

from collectives.backends.availability import NAMES, add_import_option


def parser_of(lesson: str) -> argparse.ArgumentParser:
    """The options of the lesson in this module; its title cell is the help text."""
    parser = argparse.ArgumentParser(
        description=sys.modules[lesson].__doc__ or "",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-n", "--nproc", type=int, help="ranks to start (default 4)")
    parser.add_argument(
        "--backend",
        help=f"{NAMES} (default: nccl where every rank can have a GPU, else gloo)",
    )
    parser.add_argument("--device", help="cpu or cuda (default: what suits the backend)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        help="time limit for each step, in seconds (default %(default)g)",
    )
    add_import_option(parser.add_argument)
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE.json",
        help="write who was when in which call, for ui.perfetto.dev",
    )
    parser.add_argument("--picture", action="store_true", help="show where every number went")
    parser.add_argument(
        "--save-picture", type=Path, metavar="FILE.svg|png", help="write a picture of each step"
    )
    return parser
