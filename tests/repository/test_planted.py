"""The engine of planted faults refuses a fault that is not there, and finds one that nobody notices."""

import pytest
from planted import Planted, by_any_error, by_proof, by_the_proof_of_every_rank, unnoticed

LESSON = """
import torch
import torch.distributed as dist
from collectives import check

# %%
def total(rank, world_size, device):
    x = torch.tensor([rank])
    dist.all_reduce(x)
    check(x, torch.tensor([6]), "the total")


# %%
def nothing(rank, world_size, device):
    x = torch.tensor([rank])


STEPS = [total, nothing]
"""


@pytest.fixture
def lesson(tmp_path):
    file = tmp_path / "sums.py"
    file.write_text(LESSON)
    return file


@pytest.mark.parametrize(
    ("old", "times"),
    [("dist.reduce(x)", 0), ("torch.tensor([rank])", 2)],
    ids=["absent", "twice"],
)
def test_what_is_to_be_changed_must_stand_there_exactly_once(lesson, old, times):
    with pytest.raises(ValueError, match=f"it stands {times} times"):
        _ = Planted(lesson, old, "").text


def test_a_function_names_the_cell_that_is_changed(lesson):
    fault = Planted(lesson, "torch.tensor([rank])", "None", function="nothing")
    assert fault.text == LESSON.replace("torch.tensor([rank])\n\n\nSTEPS", "None\n\n\nSTEPS")


def test_a_fault_that_is_noticed_by_nobody_or_in_other_words_is_found(lesson):
    lost = Planted(lesson, "dist.all_reduce(x)", "pass", "[3], should be [6]")
    faults = [lost, lost._replace(says="hangs"), lost._replace(new=lost.old)]
    found = unnoticed(faults, by_proof)
    assert list(found) == faults[1:]
    assert "[3], should be [6]" in found[faults[1]]
    assert found[faults[2]] == ""


def test_a_fault_that_one_rank_notices_is_not_noticed_by_every_rank(lesson):
    fault = Planted(lesson, "check(x,", "check(x + (rank == 2),", "[7], should be [6]")
    assert unnoticed([fault], by_proof) == {}
    assert unnoticed([fault], by_the_proof_of_every_rank) == {fault: ""}


def test_a_fault_that_ends_a_rank_or_makes_it_wait_is_noticed_by_its_error(lesson):
    fault = Planted(lesson, "dist.all_reduce(x)", "rank and dist.all_reduce(x)")
    harmless = fault._replace(new=fault.old)
    (waits, nothing) = by_any_error([fault, harmless], timeout=10.0)
    assert waits
    assert nothing == ""
