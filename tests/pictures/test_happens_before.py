"""The order of calls follows from program order, messages and collectives, and from nothing else."""

from dataclasses import replace

import pytest
from hand_made import program

from collectives.pictures import happens_before

WAITING = {"barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"}


def pairs(orders) -> set[str]:
    """ "0.1-1.2": entering call 1 of rank 0 comes before leaving call 2 of rank 1."""
    return {
        f"{one.before.rank}.{one.before.number}-{one.after.rank}.{one.after.number}"
        for one in orders
    }


def steps(calls) -> dict:
    found = happens_before.messages(calls)
    return happens_before.steps(
        calls, happens_before.in_every_run(calls, found) + happens_before.data_flow(calls)
    )


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (["send:1", "recv:0 send:2", "recv:1"], "0.0-1.0 1.1-2.0"),
        # Messages of one tag match in order, and tags tell them apart.
        (["send:1#1 send:1#2 send:1#1", "recv:0#2 recv:0#1 recv:0#1"], "0.1-1.0 0.0-1.1 0.2-1.2"),
        # The wait has the message.
        (["irecv:1 barrier wait:0", "barrier isend:0 wait:1"], "1.1-0.2"),
        # A receive that failed, or whose wait did, has none.
        (["irecv:1", "send:0"], ""),
        (["recv:1!", "send:0"], ""),
        (["recv:1...", "send:0"], ""),
        (["irecv:1 wait:0!", "send:0"], ""),
        # A send that failed is not taken for the next one.
        (["send:1! send:1", "recv:0"], "0.1-1.0"),
    ],
)
def test_each_message_leads_from_its_send_to_what_ends_with_it(ranks, expected):
    assert pairs(happens_before.messages(program(*ranks))) == {*expected.split()}


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        # A chain of messages is a staircase.
        (
            ["send:1", "recv:0 send:2", "recv:1"],
            {(0, 0): (0, 1), (1, 0): (0, 1), (1, 1): (1, 2), (2, 0): (0, 2)},
        ),
        # A late receive does not delay the sender. gloo's send would wait; no backend promises it.
        (["send:1", "barrier barrier recv:0"], {(0, 0): (0, 1)}),
        (["irecv:1 barrier wait:0", "barrier isend:0 wait:1"], {(0, 0): (0, 1)}),
        # A late rank lets the others come to a call that may wait for it, and not beyond.
        (["isend:1 span:own wait:0", "span:late recv:0"], {(1, 0): (0, 2), (1, 1): (2, 3)}),
        (["isend:1 wait:0 span:own", "span:late recv:0"], {(1, 0): (0, 1), (1, 1): (1, 2)}),
        # A call that was never left ends last.
        (["barrier...", "send:2 send:2", "recv:1 recv:1"], {(0, 0): (0, 2)}),
        ([], {}),
    ],
)
def test_the_steps_at_which_calls_begin_and_end(ranks, expected):
    found = steps(program(*ranks))
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize("name", sorted(WAITING))
def test_no_rank_leaves_a_barrier_before_all_ranks_have_entered(name):
    calls = program("send:1 send:1 " + name, f"recv:0 recv:0 {name}", name)
    found = steps(calls)
    last = max(found[call.rank, call.number][0] for call in calls if call.name == name)
    assert last == 2
    assert {found[call.rank, call.number][1] for call in calls if call.name == name} == {3}


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (["barrier barrier", "barrier barrier"], "0.0-1.0 1.0-0.0 0.1-1.1 1.1-0.1"),
        (["broadcast:1"] * 3, "1.0-0.0 1.0-2.0"),
        (["scatter:1"] * 3, "1.0-0.0 1.0-2.0"),
        (["reduce:1"] * 3, "0.0-1.0 2.0-1.0"),
        (["gather:1"] * 3, "0.0-1.0 2.0-1.0"),
        # One does not make the call, or another one, or has another root.
        (["barrier barrier", "new_group new_group"], ""),
        (["barrier", "all_reduce"], ""),
        (["broadcast:0", "broadcast:1"], ""),
    ],
)
def test_those_who_get_data_wait_for_those_who_give_it(ranks, expected):
    assert pairs(happens_before.data_flow(program(*ranks))) == {*expected.split()}


def test_groups_are_ordered_independently():
    """Ranks 0 and 1 meet in one group, 2 and 3 in another."""
    calls = program("barrier", "barrier", "barrier", "barrier")
    calls = [replace(call, group="lower" if call.rank < 2 else "upper") for call in calls]
    found = pairs(happens_before.data_flow(calls))
    assert found == {"0.0-1.0", "1.0-0.0", "2.0-3.0", "3.0-2.0"}


def test_an_empty_piece_orders_nothing():
    splits = {0: (0, 2), 1: (1, 1)}
    calls = [
        replace(call, splits=(None, splits[call.rank]))
        for call in program("all_to_all_single", "all_to_all_single")
    ]
    assert pairs(happens_before.data_flow(calls)) == {"0.0-1.0", "1.0-0.0"}
    calls = [replace(call, splits=(None, (1, 0))) for call in calls]
    assert pairs(happens_before.data_flow(calls)) == {"1.0-0.0"}


def test_a_collective_in_the_background_orders_its_wait():
    calls = [
        replace(call, is_async=call.rank == 0)
        for call in program("barrier new_group wait:0", "new_group barrier")
    ]
    calls = [replace(call, seq=0 if call.name == "barrier" else None) for call in calls]
    assert pairs(happens_before.data_flow(calls)) == {"1.1-0.2", "0.0-1.1"}


def test_receives_from_any_source_that_something_parts_are_not_one_row():
    calls = program("recv:any1 send:2 recv:any2", "send:0", "recv:0 send:0")
    found = happens_before.in_every_run(calls, happens_before.messages(calls))
    assert pairs(found) == {"1.0-0.0", "0.1-2.0", "2.1-0.2"}


def test_order_is_the_same_whatever_the_clock_says_and_in_whatever_sequence_calls_come():
    calls = program("irecv:1 barrier wait:0", "barrier isend:0 wait:1")
    late = [replace(call, entered=10**9 * (7 - call.number), left=1) for call in reversed(calls)]
    assert steps(late) == steps(calls)
