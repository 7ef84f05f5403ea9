"""collectives predict: what each algorithm costs here, from what a step of all ranks costs."""

import pytest
from typer.testing import CliRunner

from collectives import launch
from collectives.backends.algorithms import table
from collectives.backends.algorithms.lockstep import messages
from collectives.bench import predict
from collectives.cli import app
from collectives.pictures import crossings

# A machine on which a byte takes a microsecond, in a shift two, and with an addition one more.
US = 1e-6
SIZES = [1, 2**20]
BY_HAND = predict.Fit(
    ranks=4,
    sizes=SIZES,
    calls=(5.0, 8.0),
    steps={
        (busy, reduce): [US * (1 + busy + reduce) * size for size in SIZES]
        for busy in (False, True)
        for reduce in (False, True)
    },
)


def seconds(collective, name, nbytes=4000):
    return predict.predicted(BY_HAND, collective, name, nbytes)


def test_every_step_of_a_ring_is_a_shift():
    assert seconds("all_gather", "ring") == pytest.approx(8 + 3 * 2 * 1000 * US)
    assert seconds("all_reduce", "ring") == pytest.approx(8 + 3 * (3 + 2) * 1000 * US)


def test_a_single_message_costs_less_than_those_of_a_shift():
    assert seconds("broadcast", "direct") == pytest.approx(5 + 3 * 4000 * US)
    # Two messages at once lie between one and four. So does a call with one, and then two.
    steps = (1 + 4 / 3) * 4000 * US
    assert seconds("broadcast", "binomial_tree") == pytest.approx(5 + 3 / 6 + steps)


def test_a_larger_message_than_was_measured_takes_as_long_a_byte_as_the_largest():
    assert BY_HAND.step(1, 2**24, reduce=False) == pytest.approx(2**24 * US)


def test_what_disturbed_a_short_message_is_left_out():
    assert predict._rising([5.0, 1.0, 2.0, 9.0, 4.0]) == [1.0, 1.0, 2.0, 4.0, 4.0]


@pytest.mark.parametrize("reduce", [False, True])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_what_is_measured_is_a_schedule(n, reduce):
    shift = messages(lambda rank: predict.shift(rank, n, reduce), n, 4)
    relay = messages(lambda rank: predict.relay(rank, n, reduce), n, 4)
    assert {len(step) for step in shift} == {n}
    assert {len(step) for step in relay} == {1}
    assert {message.reduce for step in shift + relay for message in step} == {reduce}


def test_ranks_measure_every_step_and_every_algorithm():
    fit = predict.fit(3, sizes=[4, 2**12], rounds=1)
    assert fit.calls[1] >= fit.calls[0] > 0
    assert all(x > 0 for curve in fit.steps.values() for x in curve)

    def every(rank, n, device):
        return {
            collective: predict.in_turn(rank, n, device, collective, 3000, rounds=1)
            for collective in table.ALGORITHMS
        }

    (found, *_) = launch(every, 3, backend="by_hand")
    for collective, by_name in found.items():
        assert list(by_name) == table.names(collective, 3)
        assert all(x > 0 for seconds in by_name.values() for x in seconds)


def test_the_command_sorts_by_the_predicted_time(monkeypatch):
    monkeypatch.setattr(predict, "fit", lambda n: BY_HAND)
    result = CliRunner().invoke(app, ["predict", "all_reduce", "--size", "4000"])
    head, *rows = [line.split() for line in result.stdout.splitlines()]
    assert head == ["algorithm", "predicted"]
    milliseconds = {name: float(time) for name, time, _ in rows}
    assert list(milliseconds) != table.names("all_reduce", 4)  # they stand there in another order
    assert list(milliseconds.values()) == sorted(milliseconds.values())
    assert milliseconds["recursive_doubling"] == 8020


def test_the_plot_shows_from_which_size_on_which_algorithm_is_the_fastest(tmp_path):
    curves_by_name = {
        "tree": [(1, 1.0), (2, 2.0), (4, 4.0)],
        "ring": [(1, 3.0), (2, 3.0), (4, 3.0)],
    }
    assert crossings.fastest(curves_by_name) == [(1, "tree"), (4, "ring")]
    pytest.importorskip("matplotlib")
    drawn = tmp_path / "plot.svg"
    crossings.draw(curves_by_name, {"ring": [(4, 2.9)]}, "predicted", drawn)
    assert "svg" in drawn.read_text()


def test_the_command_draws_all_sizes(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(predict, "fit", lambda n: BY_HAND)
    drawn = tmp_path / "plot.png"
    words = ["predict", "all_reduce", "--size", "4000", "--plot", str(drawn)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert drawn.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("all_reduce", "--nproc", "1"), "a single rank sends nothing"),
        (("sort",), "no algorithm for 'sort': take all_reduce"),
    ],
)
def test_bad_words_are_explained(words, message):
    result = CliRunner().invoke(app, ["predict", *words])
    assert result.exit_code == 2
    assert message in result.stderr
