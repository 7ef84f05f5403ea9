"""The proof that the lessons on training share."""

import math

import pytest
import torch

from collectives import Mismatch, check_training, launch
from collectives.semantics.check_training import relative_errors


def trained(change=0.0, momentum=0.9):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    model(torch.ones(4, 3, dtype=torch.float64)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model.bias[0] += change
    return model, optimizer


def test_a_wrong_tensor_is_named_with_its_relative_error():
    words = r"rank 0/1: bias: relative error 1e-08, should be at most 1e-09 \[call\]"
    with pytest.raises(Mismatch, match=words):
        check_training(trained(1e-8), trained(), "call")


def test_with_a_limit_of_zero_minus_zero_is_not_zero():
    got, expected = trained(), trained()
    with torch.no_grad():
        got[0].bias[0], expected[0].bias[0] = -0.0, 0.0
    check_training(got, expected, "call")
    with pytest.raises(Mismatch, match="bias: relative error inf, should be at most 0e"):
        check_training(got, expected, "call", limit=0.0)
    with pytest.raises(Mismatch, match=r"bias: relative error 1e-08, should be at most 0e\+00"):
        check_training(trained(1e-8), trained(), "call", limit=0.0)


def test_errors_are_relative_and_infinite_where_there_is_nothing_to_compare_with():
    names = ["bias", "bias.momentum_buffer", "weight", "weight.momentum_buffer"]
    assert relative_errors(trained(), trained()) == dict.fromkeys(names, 0.0)
    assert relative_errors(trained(float("nan")), trained())["bias"] == math.inf
    for pair in ((trained(), trained(momentum=0.0)), (trained(momentum=0.0), trained())):
        assert list(relative_errors(*pair).values()) == [0.0, math.inf, 0.0, math.inf]
    got, expected = torch.nn.Linear(1, 2, bias=False), torch.nn.Linear(1, 2, bias=False)
    optimizer = torch.optim.SGD(got.parameters())
    got.load_state_dict({"weight": torch.tensor([[3.0], [5.0]])})
    for right, error in (([3.0, 4.0], 0.2), ([0.0, 0.0], math.inf), ([3.0, 5.0], 0.0)):
        expected.load_state_dict({"weight": torch.tensor([right]).T})
        assert relative_errors((got, optimizer), (expected, optimizer)) == {"weight": error}
    assert relative_errors((got.half(), optimizer), (expected, optimizer)) == {"weight": math.inf}


def differing(rank, world_size, device):
    """What is said of copies that differ."""
    found = []
    # Within the limit, but with other bits than rank 0; then outside, all alike, and one more so.
    for change in (1e-13 * rank, 1e-8, 1e-8 * (1 + rank)):
        try:
            check_training(trained(change), trained(), "call")
        except Mismatch as error:
            found.append(str(error))
    check_training(trained(1e-13 * rank), trained(), "call", same_bits=False)
    return found


def test_copies_must_be_equal_to_the_last_bit_and_all_ranks_name_the_worst():
    words = [
        "rank 1/2: bias: differs from rank 0's, should be equal to the last bit [call]",
        "rank 0/2: bias: relative error 1e-08, should be at most 1e-09 [call]",
        "rank 1/2: bias: relative error 2e-08, should be at most 1e-09 [call]",
    ]
    assert launch(differing, 2, backend="gloo") == [words] * 2
