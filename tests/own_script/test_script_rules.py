"""The rules of `collectives check-training`, on notes made by hand: faults, and what looks alike."""

import json
import math
from pathlib import Path

import pytest

from collectives.diagnosis.rules.snapshot import Verdict
from collectives.own_script import report, rules
from collectives.own_script.seen import Rank, Seen
from collectives.recording.ending import Ending

LINE = "train.py:7"


def note(kind, **fields):
    return {"kind": kind, "at": LINE, **fields}


def begin(number, **facts):
    facts = {"loads_ahead": False, "sampler_shuffles": False, "weights": [0.0]} | facts
    loader = {"made": LINE, "loader": LINE}
    return note("pass", number=number, **loader | facts)


def one_pass(number, samples, steps=(), *, held=0, rows=(), **facts):
    """A pass with a batch for each group of samples. `steps`: after how many of them.

    `held`: the micro-batches whose gradients it begins with.
    """
    yield begin(number, **facts)
    for at, group in enumerate(samples, 1):
        state = 100 * number + at
        found = [(one, row) for one, row in rows if one in group]
        yield note("batch", number=number, asked=group, own=group, rows=found)
        yield note("forward", size=len(group), content=0, state=state)
        if steps:
            held += 1
            yield note("backward", state=state)
        if at in steps:
            yield note("step", of=0, held=held, weights=[])
            held = 0


def rank(file: Path, *notes):
    flat = [one for part in notes for one in ([part] if isinstance(part, dict) else part)]
    file.write_text("".join(json.dumps(one) + "\n" for one in flat))
    return Rank(file)


@pytest.fixture
def judged(tmp_path):
    """By rule, what it says of ranks with these notes."""

    def judge(*ranks, one=(), again=()):
        def read(which, notes):
            joins = note("result", name="init_process_group", size=0)
            return [rank(tmp_path / f"{which}{i}", joins, *one) for i, one in enumerate(notes)]

        seen = Seen(rank(tmp_path / "one", *one), read("many", ranks), read("again", again),
                    Verdict(Ending.OK, ""), tmp_path)  # fmt: skip
        return report.judge(seen)

    return judge


def test_a_micro_batch_that_is_left_over_is_wrong_whether_it_leaks_or_is_lost(judged):
    batches, steps = [[0], [1], [2], [3], [4]], (2, 4)
    leaks = list(one_pass(2, batches, steps, held=1))
    lost = [one | {"held": 2} if one["kind"] == "step" else one for one in leaks]
    for second, says in (
        (leaks, "the first step of an epoch adds up 3 micro-batches, and others 2"),
        (lost, "the last 1 of an epoch are computed for no step"),
    ):
        found = judged([one_pass(1, batches, steps), second], [])["left_over_micro_batch"]
        assert (found.state, found.says) == (rules.WRONG, says)


def test_two_optimizers_that_drop_the_gradients_of_each_other_leave_nothing_over(judged):
    def alternating(number):
        for one in one_pass(number, [[0], [1], [2], [3]], (1, 2, 3, 4)):
            yield one | {"held": 1}
            if one["kind"] == "step":
                yield note("backward", state=0)

    notes = [*alternating(1), *alternating(2)]
    assert judged(notes, notes)["left_over_micro_batch"].state == rules.FINE


def test_a_count_of_micro_batches_that_goes_on_into_the_next_epoch_is_fine(judged):
    both = one_pass(1, [[0], [1], [2]], (2,)), one_pass(2, [[0], [1], [2]], (1, 3), held=1)
    assert judged(both, both)["left_over_micro_batch"].state == rules.FINE


@pytest.mark.parametrize(
    ("others", "state"), [(10, rules.FINE), (0, rules.WRONG), (None, rules.UNSEEN)],
    ids=["other content: split by index arithmetic", "one content: not split", "no content"],
)  # fmt: skip
def test_equal_numbers_of_samples_are_equal_samples_only_if_their_content_is(judged, others, state):
    batches = [list(range(8))]
    contents = [[(one, [one + r * (others or 0)]) for one in range(8)] for r in range(2)]
    if others is None:
        contents = [], []
    found = judged(*([one_pass(1, batches, (1,), rows=rows)] for rows in contents))
    assert found["no_sampler"].state == state


def test_an_epoch_in_the_order_of_the_data_needs_no_set_epoch(judged):
    for order, state in ([0, 1, 2, 3], rules.FINE), ([2, 0, 3, 1], rules.WRONG):
        both = [*one_pass(1, [order], (1,)), *one_pass(2, [order], (1,))]
        assert judged(both, both)["no_set_epoch"].state == state


def test_two_loaders_of_one_order_are_no_two_epochs(judged):
    order = [2, 0, 3, 1]
    both = [*one_pass(1, [order], (1,)), *one_pass(2, [order], (1,), loader="other")]
    assert judged(both, both)["no_set_epoch"].state == rules.UNSEEN
    # One line of the script may make both.
    order = [*range(8, 16), *range(8)]
    contents = [[(one, [one + other]) for one in order] for other in (0, 16)]
    both = [part for i, rows in enumerate(contents, 1) for part in
            one_pass(i, [order], (1,), rows=rows)]  # fmt: skip
    assert judged(both, both)["no_set_epoch"].state == rules.UNSEEN


def test_a_loader_of_the_training_that_is_read_again_is_no_validation(judged):
    again = one_pass(2, [[1, 0]], sampler_shuffles=True)
    both = [*one_pass(1, [[0, 1]], (1,), sampler_shuffles=True), *again]
    assert judged(both, both)["shuffle_beside_sampler"].state == rules.FINE


def test_a_few_samples_may_come_in_order_by_chance(judged):
    ordered, other = list(one_pass(1, [[0, 1]], (1,))), list(one_pass(1, [[1, 0]], (1,)))
    assert judged(ordered, ordered, one=other)["shuffle_beside_sampler"].state == rules.FINE


def test_what_is_trained_after_a_validation_is_not_trained_with_its_samples(judged):
    validation = [*one_pass(1, [[0, 1], [2, 3]]), note("end", number=1, buffers=[], trains=False)]
    both = [*validation, note("backward", state=0), note("step", of=0, held=1, weights=[])]
    assert judged(both, both)["no_sampler"].state == rules.UNSEEN


def test_ranks_with_parts_of_one_model_may_compute_one_batch(judged):
    def parts(value):
        for one in one_pass(1, [list(range(8))], (1,), rows=[(i, [i]) for i in range(8)]):
            yield one | {"weights": [value]} if one["kind"] == "step" else one

    assert judged(parts(1), parts(2))["no_sampler"].state == rules.UNSEEN
    assert judged(parts(1), parts(1))["no_sampler"].state == rules.WRONG


def test_a_forward_that_is_not_seen_is_not_called_fine(judged):
    notes = [one for one in one_pass(1, [[0], [1]], (1, 2)) if one["kind"] != "forward"]
    assert judged(notes, notes)["same_dropout_everywhere"].state == rules.UNSEEN


@pytest.mark.parametrize(
    ("name", "size", "state"),
    [("all_reduce", 2, rules.WRONG), ("all_gather", 10, rules.UNSEEN), ("barrier", 0, rules.FINE)],
)
def test_padding_counts_if_sums_of_it_are_exchanged(judged, name, size, state):
    result = note("result", name=name, size=size)
    parts = [0, 2, 4, 6, 8], [1, 3, 5, 7, 0]
    found = judged(*([*one_pass(1, [part]), result] for part in parts))
    assert found["padded_metric"].state == state


@pytest.mark.parametrize("buffers", [True, False])
def test_rank_0_may_validate_alone_through_ddp_if_that_sends_nothing(judged, buffers):
    found = judged([note("validates", buffers=buffers)], [])["rank_0_validates_alone"]
    assert found.state == (rules.WRONG if buffers else rules.FINE)


@pytest.mark.parametrize("call", ["barrier", "broadcast_object_list"])
def test_who_resumes_must_have_been_told_between_ranks(judged, call):
    save, load, told = (
        note("save", file="a.pt", wrapped=False),
        note("load", file="a.pt", is_readers=False),
        note("result", name=call),
    )
    train = list(one_pass(1, [[0]], (1,)))
    found = judged([save], [], again=([load, told, *train], [told, *train]))
    wanted = rules.WRONG if call == "barrier" else rules.FINE
    assert found["each_decides_to_resume"].state == wanted


@pytest.mark.parametrize("names", [("0.pt", "1.pt"), ("a.pt", "a.pt")])
def test_ranks_may_save_files_of_their_own_but_not_one_of_all(judged, names):
    found = judged(*([note("save", file=name, wrapped=False)] for name in names))
    wanted = rules.WRONG if names[0] == names[1] else rules.FINE
    assert found["every_rank_saves"].state == wanted


def test_names_of_ddp_in_a_file_are_wrong(judged):
    found = judged([note("save", file="a.pt", wrapped=True)], [])
    assert found["every_rank_saves"].state == rules.WRONG


def test_random_numbers_that_all_ranks_share_are_wrong_only_if_forward_draws_them(judged):
    def drawing(state):
        return [
            note("batch", number=1, asked=[0], own=[0], rows=[]),
            note("forward", size=1, content=0, state=state),
            note("backward", state=state + 1),
        ]

    same = [begin(1), *drawing(1), *drawing(5)]
    assert judged(same, same)["same_dropout_everywhere"].state == rules.WRONG
    other = [begin(1), *drawing(11), *drawing(15)]
    assert judged(same, other)["same_dropout_everywhere"].state == rules.FINE
    none = list(one_pass(1, [[0], [1]], (1, 2)))
    assert judged(none, none)["same_dropout_everywhere"].state == rules.FINE


def test_a_sampler_that_shuffles_belongs_to_the_training(judged):
    validation = list(one_pass(1, [[1, 0]], sampler_shuffles=True))
    assert judged(validation, validation)["shuffle_beside_sampler"].state == rules.WRONG
    numbers = list(range(8))
    ordered, shuffled = (list(one_pass(1, [one], (1,))) for one in (numbers, numbers[::-1]))
    found = judged(ordered, ordered, one=shuffled)["shuffle_beside_sampler"]
    assert found.says == "one process shuffles, and several do not"


@pytest.mark.parametrize("other", [1.0, 2.0])
def test_ranks_that_validate_with_other_buffers_are_told_so(other, tmp_path):
    def validates(number, value):
        return rank(
            tmp_path / f"{number}",
            *one_pass(1, [[0, 1]]),
            note("end", number=1, buffers=[value], trains=False),
        )

    many = [validates(0, 1.0), validates(1, other)]
    seen = Seen(many[0], many, [], Verdict(Ending.OK, ""), tmp_path)
    assert report.have_equal_buffers(seen) == (other == 1.0)
    assert ("validation: not equal" in report.write(seen, {})) == (other != 1.0)


def test_samples_that_no_rank_had_or_two_are_counted(tmp_path):
    parts = range(9), [0, 2, 4, 6], [1, 3, 5, 0]
    alone, *ranks = (
        rank(tmp_path / f"{i}", one_pass(1, [list(part)])) for i, part in enumerate(parts)
    )
    rows = report.samples(Seen(alone, ranks, [], Verdict(Ending.OK, ""), tmp_path))
    assert rows == [{"pass": "validation 0", "ranks": [4, 4], "missing": 2, "twice": 1}]


def test_what_one_process_did_not_do_is_missing_in_the_report(tmp_path):
    many = [rank(tmp_path / f"{i}", one_pass(1, [[i]])) for i in range(2)]
    seen = Seen(rank(tmp_path / "one"), many, [], Verdict(Ending.OK, ""), tmp_path)
    found = report.as_json(seen, {}, 0)
    assert (found["samples"][0]["missing"], found["equal_weights"]) == (None, None)
    assert found["equal_buffers"] is None
    text = report.write(seen, {})
    assert "validation 0   1        1        ?        0\n" in text
    assert "weights that can be seen: none\n" in text


def test_samples_with_the_numbers_of_others_are_not_compared(tmp_path):
    batch = list(range(8))
    many = [
        rank(tmp_path / f"{i}", one_pass(1, [batch], rows=[(one, [one + 8 * i]) for one in batch]))
        for i in range(2)
    ]
    (row,) = report.samples(Seen(many[0], many, [], Verdict(Ending.OK, ""), tmp_path))
    assert (row["ranks"], row["missing"], row["twice"]) == ([8, 8], None, None)


def test_a_training_whose_steps_are_not_seen_runs_here(tmp_path):
    """As that of an optimizer that torch.compile has compiled."""
    init = note("result", name="init_process_group", size=0)
    many = [rank(tmp_path / f"{i}", init, note("backward", state=0)) for i in range(2)]
    seen = Seen(many[0], many, [], Verdict(Ending.OK, ""), tmp_path)
    assert report.cannot_run(seen) == ""


@pytest.mark.parametrize("joined", [False, True])
def test_a_script_that_starts_its_ranks_itself_is_told_who_may_start_them(joined, tmp_path):
    init = [note("result", name="init_process_group", size=0)] * joined
    many = [rank(tmp_path / f"{i}", init) for i in range(2)]
    seen = Seen(many[0], many, [], Verdict(Ending.HUNG, "hang: ..."), tmp_path)
    assert ("mp.spawn" in report.cannot_run(seen)) == (not joined)


def test_a_report_reads_the_table_of_faults_once(tmp_path, monkeypatch):
    table, read = report.faults(), []
    monkeypatch.setattr(report, "faults", lambda: read.append(True) or table)
    seen = Seen(
        rank(tmp_path / "one"), [rank(tmp_path / "0")], [], Verdict(Ending.OK, ""), tmp_path
    )
    report.write(seen, dict.fromkeys(table, rules.Finding(rules.WRONG, "this")))
    assert len(read) == 1


@pytest.mark.parametrize(
    ("parts", "weights", "says"),
    [
        (([1, 0], [3, 2]), [1.5], "at most 5.0e-01 apart after 1 step"),
        (([1, 0], [3, 4]), [1.5], "not compared, because a step has other samples there"),
        (([1, 0], [3, 2]), [], "not compared, because not all weights can be seen, or a rank has"),
        (
            ([1, 0], [3, 2]),
            [1.5, 2],
            "not compared, because not all weights can be seen, or a rank has",
        ),
        (([1, 0], [3, 2]), [math.nan], "at most nan apart after 1 step"),
    ],
    ids=["the same samples", "others", "no weights", "more weights", "NaN"],
)
def test_steps_of_the_same_samples_are_compared(parts, weights, says, tmp_path):
    def training(name, samples, weights):
        notes = one_pass(1, [samples], (1,))
        return rank(
            tmp_path / name,
            [one | {"weights": weights} if one["kind"] == "step" else one for one in notes],
        )

    ranks = [training(f"{i}", part, weights) for i, part in enumerate(parts)]
    one = training("one", [0, 1, 2, 3], [1.0])
    seen = Seen(one, ranks, [], Verdict(Ending.OK, ""), tmp_path)
    assert report.difference(seen).startswith(says)


@pytest.mark.parametrize(("other", "equal"), [(math.nan, True), (1.0, False)])
def test_weights_of_the_ranks_are_compared_as_a_pass_begins(other, equal, tmp_path):
    def begins(number, value):
        passes = (one_pass(i, [[0]], (1,), weights=[value]) for i in (1, 2))
        return rank(tmp_path / f"{number}", *passes)

    many = [begins(0, math.nan), begins(1, other)]
    seen = Seen(many[0], many, [], Verdict(Ending.OK, ""), tmp_path)
    assert report.have_equal_weights(seen) is equal
