"""The files that a measurement is to write."""

import importlib.util
from pathlib import Path


def check_outputs(files: list[Path | None], plot: Path | None) -> None:
    """Raises ValueError if one cannot be written: a long measurement must not be lost."""
    for file in (*files, plot):
        if file is not None and not file.absolute().parent.is_dir():
            raise ValueError(f"{file}: there is no folder {file.absolute().parent}.")
    if plot and plot.suffix not in (".png", ".svg"):
        raise ValueError(f"--plot {plot}: name a file that ends in .png or .svg.")
    if plot and importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'collectives[pictures]' brings it.")
