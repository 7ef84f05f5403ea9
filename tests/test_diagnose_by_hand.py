"""The diagnosis on our own backend by_hand: it names the same ranks and lines as on gloo."""

import re

import correct_program
import correct_training
import faulty_program
import pytest
from diagnosing import TORCHRUN, diagnose, lines_of
from test_diagnose import MISTAKES
from test_diagnose_mpi import LINES, PROGRAM

from collectives import LaunchError, launch
from collectives.backends import availability as backends

pytestmark = pytest.mark.skipif(
    backends.unavailable("by_hand", "cpu", 1) is not None, reason="by_hand needs Linux"
)

# by_hand refuses such a message itself, on both ranks. What DDP calls in C++ is not in torch's own
# record of a backend in Python: there the error of by_hand names the rank that left, or the calls.
TOLD_BY_ITSELF = {"short_buffer", "uneven", "loss_meets_gradient"}
# monitored_barrier and asynchronous checkpoints are for gloo alone.
GLOO_ALONE = {"barriers", "saves_and_loads"}

QUICK = {"skip", "circle", "op", "functional", "numbers_of_any_kind", "refused"}
QUICK |= {"waits_in_short_looks", "ddp"}


def quick_and_slow(names, but):
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
            for name in names
            if name not in but
        ],
    )


def diagnosed(fn, nproc):
    return launch(
        lambda rank, n, device: fn(rank, n), nproc, backend="by_hand", diagnose=True, timeout=100
    )


@quick_and_slow(MISTAKES, TOLD_BY_ITSELF)
def test_launch_names_the_mistake_the_rank_and_the_line(name):
    kind, words = MISTAKES[name]
    with pytest.raises(LaunchError) as caught:
        diagnosed(getattr(faulty_program, name), 4)
    headline, *rows = str(caught.value).splitlines()
    assert caught.value.kind == kind, caught.value
    assert words in headline
    for rank, line in lines_of(name).items():
        assert any(
            f"faulty_program.py:{line} " in row
            and (rank == "all" or re.search(rf"ranks? .*\b{rank}\b", row))
            for row in rows
        )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("uneven", "all_reduce failed: connection closed by peer: rank 1 has gone"),
        pytest.param("loss_meets_gradient", "float32 x 3 ", marks=pytest.mark.slow),
        pytest.param("short_buffer", "has 16 bytes, the tensor for it 8", marks=pytest.mark.slow),
    ],
)
def test_by_hand_itself_says_what_the_diagnosis_cannot_see(name, words):
    """An error, and no crash: DDP waits for its calls in C++."""
    with pytest.raises(LaunchError) as caught:
        diagnosed(getattr(faulty_program, name), 4)
    assert caught.value.kind == "raised", caught.value
    assert words in str(caught.value)


@quick_and_slow(correct_program.steps(correct_program), GLOO_ALONE)
def test_a_correct_program_is_not_suspected(name):
    assert diagnosed(getattr(correct_program, name), 4) == [None] * 4


@quick_and_slow(correct_program.steps(correct_training), GLOO_ALONE)
def test_a_correct_training_is_not_suspected(name):
    assert diagnosed(getattr(correct_training, name), 2) == [None] * 2


@pytest.mark.slow  # launch names these, too
@pytest.mark.parametrize(
    ("what", "kind", "ranks"),
    [
        ("healthy", "ok", []),
        ("skips", "hang", [2]),
        ("raises", "raised", [1]),
        ("dies", "died", [1]),
    ],
)
def test_the_rank_and_the_line_are_named_under_torchrun(what, kind, ranks, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.replace('"mpi", init_method="mpi://"', '"by_hand"'))
    verdict, _ = diagnose(tmp_path, *TORCHRUN[:-1], "3", str(program), what, hang_after=4)
    found = verdict["verdict"], [one["rank"] for one in verdict["guilty"]]
    assert found == (kind, ranks), verdict["says"]
    assert all(one["line"] == LINES[what] for one in verdict["guilty"] if what in LINES)
