"""The README's picture: the first one in the notebook of all_reduce, drawn from its run.

`python -m collectives.lesson.make.picture` copies it from the notebook to docs/all_reduce.svg.
"""

import json

from collectives.lesson.make.generated_part import ROOT

PATH = ROOT / "docs" / "all_reduce.svg"


def svg() -> str:
    notebook = json.loads((ROOT / "notebooks" / "all_reduce.ipynb").read_text(encoding="utf-8"))
    return next(
        "".join(output["data"]["image/svg+xml"])
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
        if "image/svg+xml" in output.get("data", ())
    )


if __name__ == "__main__":
    PATH.write_text(svg(), encoding="utf-8")
