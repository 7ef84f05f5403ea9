"""What a rank tells of itself."""

import os

import pytest

from collectives.recording.rank_log import _handled


def raises(file):
    """A function of this file that raises KeyError."""
    names = {}
    exec(compile("def fails():\n    raise KeyError('label')", file, "exec"), names)
    return names["fails"]


@pytest.mark.parametrize("file", [__file__, "<frozen importlib._bootstrap_external>", os.__file__])
def test_an_exception_that_the_program_handles_is_told_with_its_own_line(file):
    try:
        raises(file)()
    except KeyError:
        assert _handled().startswith("KeyError: 'label' (test_rank_log.py:")
    assert _handled() == ""


@pytest.mark.parametrize("file", ["<frozen importlib._bootstrap_external>", os.__file__])
def test_an_exception_that_a_library_handles_itself_is_not_told(file):
    names = {"fails": raises(file)}
    source = "def tries(look):\n  try:\n    fails()\n  except KeyError:\n    return look()"
    exec(compile(source, file, "exec"), names)
    assert names["tries"](_handled) == ""
