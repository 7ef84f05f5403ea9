"""The picture of data parallel training, docs/data_parallel.svg: one step of the first program of
the course, examples/first_training.py, with the numbers that it prints on two ranks.
"""

import re
import subprocess
import sys
from pathlib import Path

from collectives.pictures import picture
from collectives.pictures.colours import DARK, GREY, LIGHT, colour_of
from collectives.pictures.page import LINE, MARGIN, WIDEST, Canvas, default_style

PROGRAM = Path(__file__).parents[1] / "examples" / "first_training.py"
_RANKS = 2
# The lines of two ranks may run together.
_NUMBER = r"(-?\d+\.\d\d)"
_LINE = rf"rank (\d), step 1: own gradient {_NUMBER}, mean {_NUMBER}, weight {_NUMBER}"
_LEFT, _WIDTH, _BETWEEN, _HEIGHT, _ROW = 2.3, 2.75, 0.7, 0.5, 0.92
_ROWS = (
    ("equal copies", "of one model"),
    ("samples", "of their own"),
    ("own gradients,", "after backward()"),
    ("one average,", "by all_reduce"),
    ("equal steps:", "equal copies again"),
)


def svg() -> str:
    return picture.svg(_draw(_first_step())).decode()


def _first_step() -> list[tuple[str, str, str]]:
    """Own gradient, mean and new weight of each rank."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={_RANKS}"]
    command = [*torchrun, str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    lines = sorted(re.findall(_LINE, done.stdout))
    return [(_short(own), _short(mean), _short(new)) for _, own, mean, new in lines]


def _short(number: str) -> str:
    return f"{float(number):g}"


@default_style
def _draw(steps: list[tuple[str, str, str]]) -> Canvas:
    canvas = Canvas("Data parallel training on two ranks: one step")
    tops = [MARGIN + 0.85 + _ROW * row for row in range(len(_ROWS))]
    for top, lines in zip(tops, _ROWS, strict=True):
        canvas.lines(MARGIN, top + _HEIGHT / 2 - LINE / 2, lines, size=10)
    told = []
    for rank, (own, mean, new) in enumerate(steps):
        left = _LEFT + (_WIDTH + _BETWEEN) * rank
        middle = left + _WIDTH / 2
        canvas.chip(left, tops[0] - 0.28, rank)
        samples = ", ".join(str(sample) for sample in range(rank + 1, 9, _RANKS))
        texts = {0: "weight 1", 1: f"x = {samples}", 2: f"gradient {own}"}
        texts[4] = f"weight 1 - 0.01 * ({mean}) = {new}"
        for row, text in texts.items():
            colour = LIGHT if row in (0, 4) else colour_of(rank)
            canvas.cell((left, tops[row], _WIDTH, _HEIGHT), text, colour, size=11)
        for row in range(len(_ROWS) - 1):
            ends = [(middle, tops[row] + _HEIGHT + 0.04), (middle, tops[row + 1] - 0.04)]
            look = {"color": DARK, "mutation_scale": 12, "linewidth": 1.2}
            canvas.arrow(ends, f"r{rank}/{row}", **look)
        told.append(f"Rank {rank}: {'; '.join(texts.values())}.")
    text = f"mean of {' and '.join(own for own, _, _ in steps)}: {steps[0][1]}"
    box = _LEFT, tops[3], _WIDTH * _RANKS + _BETWEEN * (_RANKS - 1), _HEIGHT
    for rank in range(_RANKS):  # a stripe for each rank whose gradient is in it
        stripe = box[2] / _RANKS
        canvas.box((box[0] + stripe * rank, box[1], stripe, box[3]), colour_of(rank))
    canvas.cell((box[0] + 1.4, box[1] + 0.09, box[2] - 2.8, _HEIGHT - 0.18), text, LIGHT, size=11)
    canvas.box(box, "none", edgecolor=GREY, linewidth=0.8)
    assert MARGIN + box[0] + box[2] <= WIDEST
    return canvas.end(tops[-1] + _HEIGHT + MARGIN, " ".join([*told, f"Between them the {text}."]))
