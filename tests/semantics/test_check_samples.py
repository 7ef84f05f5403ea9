"""Which samples each rank has computed is told by their content, and every sample counts once."""

import copy

import pytest
import torch

from collectives import Mismatch, check_samples, launch, note_samples


def batch(samples: str) -> torch.Tensor:
    return torch.tensor([[float(sample)] for sample in samples]).reshape(-1, 1)


def trained(*steps: str, dtype=torch.float32):
    """One sample after the other, as micro-batches; in each step a result of another rank, too."""
    model = torch.nn.Linear(1, 1, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters())
    note_samples(model, optimizer)
    for samples in steps:
        for micro_batch in batch(samples).to(dtype).split(1):
            model(micro_batch).sum().backward()
        model(batch("9").to(dtype).requires_grad_())
        with torch.no_grad():
            model(batch("8").to(dtype))
        optimizer.step()
    model(batch("7").to(dtype))  # no step follows
    return model, optimizer


# What four ranks compute of the batch 0123 and which replica each of them belongs to; what is said.
SHARES = {
    ("0 1 2 3", "0123"): "",
    ("3 2 1 0", "0123"): "",
    ("01 23 01 23", "0101"): "",
    ("01 23 10 32", "5757"): "",
    ("01 23 - -", "0101"): "",
    ("- - 01 23", "0101"): "",
    ("0123 0123 0123 0123", "0000"): "",
    ("0123 0123 0123 0123", "0123"): "rank 0/4: step 2: computed 4 samples of 4, its share is 1",
    ("0123 0123 0123 0123", "0101"): "rank 0/4: step 2: computed 4 samples of 4, its share is 2",
    ("- - - 0123", "0123"): "rank 3/4: step 2: computed 4 samples of 4, its share is 1",
    ("0 1 1 3", "0123"): "rank 2/4: step 2: 1 of its 1 samples are computed by another rank, too,",
    ("01 12 01 12", "0101"): "rank 1/4: step 2: 1 of its 2 samples are computed by another rank,",
    ("0 1 2 4", "0123"): "rank 3/4: step 2: 1 of its 1 samples are computed by another rank, too,",
    ("0 1 - 3", "0123"): "rank 2/4: step 2: 1 samples of 4 are computed by no rank",
    ("- - - -", "0000"): "rank 0/4: step 2: 4 samples of 4 are computed by no rank",
    ("01 23 01 21", "0101"): "rank 3/4: step 2: its 2 samples are not those of its replica",
}


def said(got, expected, replica=None):
    try:
        check_samples(got, expected, "call", replica=replica)
    except Mismatch as error:
        return str(error)
    return ""


def of_all_shares(rank, world_size, device):
    expected = trained("5678", "0123", dtype=torch.float64)
    found = []
    for shares, replicas in SHARES:
        mine = shares.split()[rank].replace("-", "")
        first = "56" if rank % 2 else "78"
        first = {4: "5678"[rank], 2: first, 1: "5678"}[len(set(replicas))]
        got = trained(first, mine)
        found.append(said(got, expected, int(replicas[rank])))
    return found


def test_ranks_that_do_not_share_a_batch_are_named():
    for rank in launch(of_all_shares, 4, backend="gloo"):
        for words, expected in zip(rank, SHARES.values(), strict=True):
            assert words.startswith(expected)
            assert bool(words) == bool(expected)


def without_a_replica(rank, world_size, device):
    expected = trained("01")
    return said(trained("01"[rank]), expected), said(trained("01"), expected)


def test_each_rank_is_a_replica_of_its_own_if_it_says_nothing():
    words = "rank 0/2: step 1: computed 2 samples of 2, its share is 1 [call]"
    assert launch(without_a_replica, 2, backend="gloo") == [("", words)] * 2


def test_in_one_process_it_works_too():
    check_samples(trained("01", "1"), trained("10", "1"), "call")
    with pytest.raises(Mismatch, match=r"rank 0/1: computed 1 steps, should be 2 \[call\]"):
        check_samples(trained("01"), trained("01", "1"), "call")
    with pytest.raises(Mismatch, match="step 2: 1 of its 1 samples are computed by another"):
        check_samples(trained("01", "0"), trained("01", "1"), "call")
    with pytest.raises(Mismatch, match="step 1: 1 samples of 2 are computed by no rank"):
        check_samples(trained("0"), trained("00"), "call")


def test_what_was_noted_of_another_training_does_not_count():
    model, optimizer = trained("01")
    note_samples(model, optimizer)
    model(batch("2")).sum().backward()
    copied = copy.deepcopy(model)
    copied(batch("3"))
    optimizer.step()
    check_samples((model, optimizer), trained("2"), "call")


def test_without_any_note_it_is_an_error_and_no_mismatch():
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match="note_samples was not called for this model"):
        check_samples((model, None), trained("0"), "call")
