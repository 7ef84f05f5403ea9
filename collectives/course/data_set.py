"""The data of the lessons that train: 1,797 images of handwritten digits, 8 by 8 pixels, and a text
that describes them.

They come with scikit-learn: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits",
UCI Machine Learning Repository (1998).
"""

import functools
import importlib.util
from pathlib import Path

from collectives.launcher import server

# The first optimizer of a process imports the compiler, which takes more than a second.
server.preload("torch._dynamo")


def digits(device="cpu"):
    """The images, float64 [1797, 64] from 0 to 1, and their labels, int64 [1797].

    Nothing of scikit-learn is imported, which would take a second. ImportError if it is missing.

    >>> images, labels = digits()
    >>> images.shape, labels[:3]
    (torch.Size([1797, 64]), tensor([0, 1, 2]))
    """
    images, labels = _loaded()
    return images.to(device), labels.to(device)


def text(device="cpu"):
    """The description of these images: the number of each of its characters, int64, below 128.

    ImportError if scikit-learn is missing.

    >>> "".join(chr(number) for number in text()[3:18])
    '_digits_dataset'
    """
    import torch

    return torch.tensor([*_file("descr/digits.rst").read_bytes()], device=device)


@functools.cache
def _loaded():
    import numpy
    import torch

    rows = torch.from_numpy(numpy.loadtxt(_file("data/digits.csv.gz"), delimiter=","))
    return rows[:, :-1] / 16, rows[:, -1].long()


def _file(path: str) -> Path:
    """A file that comes with scikit-learn."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise ImportError(
            "the data come with scikit-learn, which is not installed: "
            "type `pip install -e '.[training]'`, or `pip install scikit-learn`"
        )
    return Path(package.origin).parent / "datasets" / path
