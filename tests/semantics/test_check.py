"""The check of every lesson refuses what is not equal, and says what it got, in one line."""

import pickle
import re
import subprocess
import sys

import pytest
import torch

from collectives import LaunchError, Mismatch, check, launch


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([1, 2]), torch.tensor([1.0, 2.0])),
        (torch.tensor([1, 2]), torch.tensor([[1, 2]])),
        (torch.tensor([1.0]), torch.tensor([1.0 + 1e-6])),
        (torch.tensor([float("nan")]), torch.tensor([1.0])),
        (torch.tensor([-0.0]), torch.tensor([0.0])),
        (torch.tensor([1 - 0j]).conj(), torch.tensor([1 - 0j])),
        ([torch.tensor(1)], [torch.tensor(1), torch.tensor(2)]),
        ([torch.tensor(1), torch.tensor(3)], [torch.tensor(1), torch.tensor(2)]),
        ([1, 2], torch.tensor([1, 2])),
        (1, True),
        ("a", "b"),
        ("ab", ["a", "b"]),
        (None, torch.tensor(1)),
    ],
    ids=str,
)
def test_check_refuses_a_wrong_value_dtype_shape_or_type(got, expected):
    with pytest.raises(Mismatch):
        check(got, expected, "call")


def test_check_accepts_what_is_equal():
    check([torch.tensor([1, 2]), "a"], [torch.tensor([1, 2]), "a"], "call")
    check(torch.tensor([float("nan")]), torch.tensor([float("nan")]), "call")
    check(torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j]), "call")
    check(torch.eye(2)[:, 1], torch.tensor([0.0, 1.0]), "call")


@pytest.mark.parametrize(
    "view",
    [
        torch.tensor([[5, 6]])[:, 0],
        torch.tensor([[5, 6, 7]])[:, ::2][:, :1],
        torch.arange(12).view(3, 4).mT,
        torch.arange(12).view(3, 4)[:, ::2],
        torch.arange(3).expand(2, 3),
        torch.empty(0, 2)[:, 0],
        torch.tensor([[5.0, 6.0]], requires_grad=True)[0, 1],
        torch.tensor([[True, False]])[:, 1],
        torch.tensor([[1 + 2j, 3j]]).conj()[:, 1].imag,
    ],
    ids=lambda view: f"{list(view.shape)} with strides {list(view.stride())}",
)
def test_a_view_is_equal_to_its_values_whatever_its_strides(view):
    values = torch.tensor(view.tolist(), dtype=view.dtype)
    check(view, values, "call")
    check(values, view, "call")
    if view.numel():
        with pytest.raises(Mismatch):
            check(view, values.logical_not().to(values.dtype), "call")


def test_a_tolerance_is_relative_and_excuses_no_other_shape_or_dtype():
    ones = torch.ones(2)
    check(ones, ones + 1e-7, "call", rtol=1e-6)
    for other in (ones + 1e-5, torch.ones(1, 2), torch.ones(1), ones.double()):
        with pytest.raises(Mismatch):
            check(ones, other, "call", rtol=1e-6)
    with pytest.raises(Mismatch):
        check(torch.tensor([1e-9]), torch.tensor([0.0]), "call", rtol=1e-6)


def test_a_failed_check_says_what_it_got():
    for got, words in [
        (torch.tensor([1]), "got [1], should be 2 [call, int64[1]]"),
        ((torch.tensor([1.5]), "a"), "got [[1.5], 'a'], should be 2 [call, float32[1]]"),
        ([], "got [], should be 2 [call]"),
    ]:
        with pytest.raises(Mismatch, match=re.escape(f"rank 0/1: {words}")):
            check(got, 2, "call")


def test_a_failed_check_of_a_long_tensor_says_where_the_difference_begins():
    got, expected = torch.zeros(1000), torch.zeros(1000)
    got[700] = 7.0
    with pytest.raises(Mismatch, match=r"got \.\.\. [0., ]{20}7\.0.*, should be") as error:
        check([got], [expected], "scatter")
    assert len(str(error.value)) < 500


def test_a_mismatch_tells_the_difference_without_the_rank_and_the_call():
    with pytest.raises(Mismatch) as caught:
        check([": [1]"], [2], "sum: a [b")
    assert caught.value.difference == "got [': [1]'], should be [2]"
    assert str(caught.value) == "rank 0/1: got [': [1]'], should be [2] [sum: a [b]"
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.difference) == (str(caught.value), caught.value.difference)


def test_a_failed_check_has_one_shape():
    def fn(rank, world_size, device):
        check(torch.tensor([rank]), torch.tensor([0]), "all_reduce(SUM)")

    with pytest.raises(LaunchError) as caught:
        launch(fn, 2)
    assert "Mismatch: rank 1/2: got [1], should be [0] [all_reduce(SUM), int64[1], gloo]" in str(
        caught.value
    )


@pytest.mark.slow
def test_proofs_hold_under_python_o():
    program = "import torch; from collectives import check; check(torch.tensor([1]), torch.tensor([2]), 'call')"
    done = subprocess.run(
        [sys.executable, "-O", "-c", program], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 1
    assert "Mismatch: rank 0/1: got [1], should be [2] [call, int64[1]]" in done.stderr
