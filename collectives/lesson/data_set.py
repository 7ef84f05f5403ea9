"""The data of the lessons on training: 1,797 images of handwritten digits, 8 by 8 pixels.

They come with scikit-learn: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits",
UCI Machine Learning Repository (1998).
"""

import functools
import importlib.util
from pathlib import Path

from collectives.launcher.server import start_beside_torch

# The first optimizer of a process imports the compiler, which takes more than a second.
start_beside_torch("torch._dynamo")


def digits(device="cpu"):
    """The images, float64 [1797, 64] from 0 to 1, and their labels, int64 [1797].

    Nothing of scikit-learn is imported, which would take a second. ImportError if it is missing.
    """
    images, labels = _loaded()
    return images.to(device), labels.to(device)


@functools.cache
def _loaded():
    import numpy
    import torch

    package = importlib.util.find_spec("sklearn")
    if package is None:
        raise ImportError(
            "the images come with scikit-learn, which is not installed: "
            "type `pip install -e '.[training]'`, or `pip install scikit-learn`"
        )
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    rows = torch.from_numpy(numpy.loadtxt(file, delimiter=","))
    return rows[:, :-1] / 16, rows[:, -1].long()
