"""From calls made by hand to a verdict: its kind, the guilty ranks, and no false alarm."""

import itertools
import json
import random
import time
from dataclasses import astuple, replace

import pytest
from hand_made import program, record

from collectives.diagnosis.rules.compare import compare
from collectives.diagnosis.rules.faults import lost
from collectives.diagnosis.rules.flight_record import match_records
from collectives.diagnosis.rules.judge import judge
from collectives.diagnosis.rules.matching import WINDOW, Matching, waits_for
from collectives.diagnosis.rules.missing import JoiningWorld, never_met
from collectives.diagnosis.rules.rank_state import State
from collectives.diagnosis.rules.snapshot import Snapshot
from collectives.diagnosis.rules.suspects import find_cycle
from collectives.diagnosis.rules.unmatched import from_json, merge, unmatched
from collectives.diagnosis.run import as_json
from collectives.diagnosis.watch.hang_monitor import HangMonitor
from collectives.recording import call_log, rank_log, stack
from collectives.recording.call import MADE_BY, Call, CallArgs, TensorKind, group_label, was_refused
from collectives.recording.call_log import SLOTS, LogReader, Writer
from collectives.recording.ending import Ending

LEFT = 1
ENDED = State(Ending.RETURNED)


def diagnose(calls, states=None, stalled=True):
    return judge(Matching(calls), states or {}, 0, stalled)


class Program:
    """Notes calls as ranks would make them: numbers and seqs count up by themselves."""

    def __init__(self, n):
        self.members = tuple(range(n))
        self.calls, self.numbers, self.seqs = [], dict.fromkeys(self.members, 0), {}

    def call(self, rank, name, left=LEFT, members=None, **fields):
        """One call of one rank: `left=None` where it is still inside."""
        members = members or self.members
        group = fields.setdefault("group", "WORLD")
        if "send" not in name and "recv" not in name and name != "wait":
            fields["seq"] = self.seqs.setdefault((rank, group), 0)
            fields.setdefault("torch_seq", fields["seq"] + 1)
            self.seqs[rank, group] += not was_refused(fields.get("error") or "")
        elif name != "wait":
            fields.setdefault("tag", 0)
        fields = {"file": "train.py", "line": 10, "function": "step"} | fields
        self.calls.append(
            Call(name, rank=rank, number=self.numbers[rank], members=members, left=left, **fields)
        )
        self.numbers[rank] += 1
        return self

    def all(self, name, ranks=None, **fields):
        """A field may be a function of the rank."""
        for rank in self.members if ranks is None else ranks:
            own = {key: one(rank) if callable(one) else one for key, one in fields.items()}
            self.call(rank, name, **own)
        return self


def differing(n, odd, name="all_reduce", **fields):
    """All ranks make the call; rank `odd` with these other fields."""
    program = Program(n).all("barrier")
    usual = {
        "op": "SUM",
        "tensors": (TensorKind("float32", (4,)),),
        "peer": 0 if name == "broadcast" else None,
    }
    for rank in range(n):
        program.call(rank, name, left=None, **(usual | (fields if rank == odd else {})))
    return program.calls


def check(verdict, kind, *ranks, field=None):
    found = verdict.kind.verdict, tuple(call.rank for call in verdict.guilty)
    assert found == (kind, ranks), verdict.says
    assert field in (None, verdict.field), verdict.says


def told(matching, rank):
    """What its machine tells another of a rank."""
    return from_json(json.loads(json.dumps(astuple(unmatched(matching, rank)))))


def across_machines(calls):
    """The calls of ranks that run on a machine of their own each."""
    ranks = sorted({call.rank for call in calls})
    return merge(
        told(Matching(call for call in calls if call.rank == rank), rank) for rank in ranks
    )


def floats(*lengths):
    return tuple(TensorKind("float32", (length,)) for length in lengths)


def objects(count):
    return (TensorKind("object", (count,)),)


def odd_one(name, odd, usual, wrong, **fields):
    """Three ranks call `name` with `usual` (by rank), and rank `odd` with `wrong` tensors."""
    return Program(3).all(name, tensors=lambda r: wrong if r == odd else usual(r), **fields).calls


def message(send, receive, sent, received, left=LEFT, tags=(0, 0)):
    sender_left = left if tags[0] else LEFT  # an untagged message has gone out
    program = Program(2).call(0, send, peer=1, tensors=sent, left=sender_left, tag=tags[0])
    return program.call(1, receive, peer=0, tensors=received, left=left, tag=tags[1]).calls


FOUR, FIVE = TensorKind("float32", (4,)), TensorKind("float32", (5,))
at_root = [floats(4, 4, 4, 4), floats(4), floats(4)].__getitem__

# What was called -> the guilty ranks, and what differs.
MISMATCHES = {
    "op": (differing(4, 0, op="MAX"), "0 op"),
    "dtype": (differing(4, 3, tensors=(TensorKind("int32", (4,)),)), "3 dtype"),
    "shape": (differing(4, 1, tensors=floats(8)), "1 shape"),
    "root": (differing(4, 2, name="broadcast", peer=1), "2 root"),
    "tie": (differing(2, 0, op="MAX"), "0 1 op"),
    "members": (differing(4, 2, members=(0, 1, 2)), "2 group"),
    "new_group": (differing(4, 2, name="new_group", ranks=((0, 1),)), "2 group"),
    "objects": (
        odd_one("broadcast_object_list", 2, lambda _: objects(3), objects(2), peer=0),
        "2 shape",
    ),
    "sent objects": (
        message("send_object_list", "recv_object_list", objects(2), objects(1)),
        "0 1 shape",
    ),
    "call": (Program(3).all("all_reduce", [0, 1]).call(2, "broadcast", peer=0).calls, "2 call"),
    "all_gather": (
        odd_one("all_gather", 1, lambda _: floats(4, 4, 4, 4), floats(4, 4, 4, 5)),
        "1 shape",
    ),
    "gather": (odd_one("gather", 2, at_root, floats(5), peer=0), "0 2 shape"),
    "scatter": (odd_one("scatter", 1, at_root, floats(5), peer=0), "0 1 shape"),
    "reduce_scatter": (
        odd_one("reduce_scatter_single", 0, lambda _: floats(4, 12), floats(5, 15)),
        "0 shape",
    ),
    "all_to_all": (
        odd_one("all_to_all", 1, lambda _: floats(*[4] * 6), floats(*[4] * 5, 5)),
        "1 2 shape",
    ),
    "splits": (
        Program(3)
        .all(
            "all_to_all_single",
            tensors=floats(3, 3),
            splits=lambda r: ((1, 1, 1), (2, 1, 0) if r == 1 else (1, 1, 1)),
        )
        .calls,
        "1 splits",
    ),
    "short message": (message("send", "recv", floats(5), floats(4), None), "0 1 shape"),
    "message of another type": (
        message("isend", "irecv", (TensorKind("int32", (4,)),), floats(4)),
        "0 1 dtype",
    ),
    "message of a third type": (
        message("isend", "irecv", floats(4), (TensorKind("int32", (4,)),)),
        "0 1 dtype",
    ),
    "tags": (message("send", "recv", (), (), left=None, tags=(1, 2)), "0 1 tag"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_what_differs_and_who_is_in_the_minority(case):
    calls, expected = MISMATCHES[case]
    *guilty, field = expected.split()
    backwards = calls[::-1] if case == "tags" else sorted(calls, key=lambda call: -call.rank)
    for matching in (Matching(calls), Matching(backwards), across_machines(calls)):
        verdict = judge(matching, {}, 0, stalled=False)
        check(verdict, "mismatch", *map(int, guilty), field=field)
        assert all((call.file, call.line) == ("train.py", 10) for call in verdict.guilty)


def wait_in(program, ranks, name="all_reduce", **fields):
    return program.all(name, ranks, left=None, **fields)


def example():
    return (
        wait_in(Program(4).all("all_reduce"), [0, 1, 3], line=88)
        .call(2, "recv", peer=1, line=61, left=None)
        .calls
    )


LOAD = ("train.py", 44, "load")
COMPUTES = State(where=LOAD)
GAVE_UP = State(
    Ending.RAISED, "RuntimeError: Timed out waiting 4000ms", ("train.py", 10, "step"), 5
)
LOST = State(Ending.RAISED, "RuntimeError: Connection closed by peer", ("train.py", 10, "step"), 5)


def test_ranks_that_meet_late_have_as_long_as_they_came_apart():
    """Where rank 0, which holds the store, comes after 40 s, the other sleeps for up to 40 s more."""

    class Quiet:
        def poll(self):
            return False

        def are_gone(self):
            return False

        def verdict(self, stalled):
            program = Program(2)
            program.call(1, "init_process_group", left=None, entered=0)
            program.call(0, "init_process_group", left=None, entered=40 * 10**9)
            return diagnose(program.calls, stalled=stalled)

    monitor = HangMonitor(Quiet(), hang_after=6)
    looks = [(at, monitor.judge(monitor.moved + at)) for at in range(0, 60, 2)]
    (first, verdict), *_ = [(at, verdict) for at, verdict in looks if verdict is not None]
    assert first > 6 + 40, verdict.says
    check(verdict, "hang", 0, 1)


def made(*ranks, error=LOST.text, members=None):
    """The calls of words, as hand_made.program reads them, all made in one line."""
    place = {"file": "train.py", "line": 10, "function": "step", "entered": 0}
    return [
        replace(call, **place, left=call.left and LEFT, error=call.error and error)
        for call in program(*ranks, members=members)
    ]


RANK_1_IS_ABSENT = made("all_reduce...", "", "all_reduce...")
TIMED_OUT = made("all_reduce!", error=GAVE_UP.text)
LOST_ALL = {0: LOST, 2: LOST}
ALL_ENDED = dict.fromkeys(range(3), ENDED)


def raised(text, at=0, where=("train.py", 7, "load")):
    return State(Ending.RAISED, text, where, at, text.partition(":")[0])


# What was called, and the states of the ranks -> the verdict with the guilty ranks.
OTHERS = {
    "never joined, or never sent": (example(), {}, "hang 2 1"),
    "circle": (made("recv:1...", "recv:2...", "recv:0..."), {}, "hang 0 1 2"),
    "circle of two": (made("recv:1...", "recv:0..."), {}, "hang 0 1"),
    "returned early": (RANK_1_IS_ABSENT, {1: ENDED}, "hang 1"),
    "joined alone": (made("all_reduce...", "", "", ""), dict.fromkeys((1, 2, 3), ENDED), "hang 0"),
    "tie": (made("all_reduce...", ""), {1: ENDED}, "hang 1 0"),
    "computes": (RANK_1_IS_ABSENT, {1: COMPUTES}, "slow 1"),
    "sender computes": (made("recv:1...", ""), {1: COMPUTES}, "slow 1"),
    "waits for one that computes, and another for it": (
        made("recv:1...", "", "") + wait_in(Program(3), [2], group="1", members=(0, 2)).calls,
        {1: COMPUTES},
        "slow 1",
    ),
    "sender returned": (made("recv:1...", ""), {1: ENDED}, "hang 0 1"),
    "from any, all returned": (made("recv...", "", ""), {1: ENDED, 2: ENDED}, "hang 0 1 2"),
    "from any, one has sent": (made("recv...", "", "send:0"), {1: ENDED, 2: ENDED}, "hang 0"),
    "those that came were told that one did not": (
        made("all_reduce!", "all_reduce!", "", error="RuntimeError: told"),
        ALL_ENDED,
        "ok",
    ),
    "LOCAL_RANK for RANK": (
        Program(4).all("init_process_group", peer=lambda r: r % 2, left=None).calls,
        {},
        "hang 2 3",
    ),
    "raised": (RANK_1_IS_ABSENT, {1: raised("ValueError: no", 1)}, "raised 1"),
    "died": (RANK_1_IS_ABSENT, {1: State(Ending.DIED, "was killed by SIGKILL", at=1)}, "died 1"),
    "died, others lost it": (RANK_1_IS_ABSENT, LOST_ALL | {1: State(Ending.DIED, at=9)}, "died 1"),
    "returned, others lost it": (RANK_1_IS_ABSENT, LOST_ALL | {1: ENDED}, "hang 1"),
    "died, others as they lost it": (
        made("all_reduce!", ""),
        {0: State(Ending.DIED, at=1), 1: State(Ending.DIED, at=2)},
        "died 1",
    ),
    "all raised the same": (
        made("barrier", "barrier", "barrier"),
        {rank: raised(f"KeyError: {rank}", 3 - rank) for rank in range(3)},
        "raised 0 1 2",
    ),
    "all raised, and name one": (
        made("barrier", "barrier", "barrier"),
        {
            rank: raised(f"KeyError: rank {rank}, not rank {other}")
            for rank, other in enumerate((2, 2, 0))
        },
        "raised 2",
    ),
    "first of two raised": (
        made("all_reduce...", "", ""),
        {
            1: State(Ending.RAISED, "KeyError: 1", at=2),
            2: State(Ending.RAISED, "KeyError: 2", at=1),
        },
        "raised 2",
    ),
    "finished without one": (made("barrier", "", "barrier"), ALL_ENDED, "mismatch 1"),
    "message without an end": (made("isend:1", ""), {0: ENDED, 1: ENDED}, "mismatch 0 1"),
    "a message of which one end is not known": (
        message("send", "recv", floats(4), ()),
        {0: ENDED, 1: ENDED},
        "ok",
    ),
    "lost whom it sent to": (
        made("send:2!", "recv:0!", ""),
        {0: LOST, 1: LOST, 2: ENDED},
        "hang 0 2",
    ),
    "lost whom it waited for": (
        Program(3)
        .call(1, "irecv", peer=2)
        .call(1, "wait", awaited="irecv", of=0, peer=2, error=LOST.text)
        .calls,
        ALL_ENDED | {1: LOST},
        "hang 1 2",
    ),
    "received after the sender had given up": (
        made("send:1!", "recv:0!"),
        {0: LOST, 1: LOST},
        "raised 0",
    ),
    "circle of two groups": (
        made("barrier...", "barrier...", "", "")
        + Program(4).call(2, "all_reduce", group="1", members=(2, 3), left=None).calls
        + Program(4).call(3, "all_reduce", group="2", members=(1, 3), left=None).calls,
        {},
        "hang 1 3",
    ),
    "left the group": (
        wait_in(Program(3).call(1, "destroy_process_group"), [0, 2]).calls,
        {1: COMPUTES},
        "hang 1",
    ),
    "lost whom it sent to, while another waited for it": (
        made("send:1!", "", "recv:0..."),
        {0: LOST, 1: ENDED, 2: State(Ending.DIED, at=9)},
        "hang 0 1",
    ),
    "lost whom os._exit had ended, which was seen later": (
        made("all_reduce!"),
        {0: LOST, 1: State(Ending.RETURNED, at=LOST.at + 1, unseen=True)},
        "raised 1",
    ),
    "timed out, and another was last seen elsewhere": (
        TIMED_OUT,
        {0: GAVE_UP, 1: COMPUTES},
        "slow 1",
    ),
    "timed out, and another was last seen in the same place": (
        TIMED_OUT,
        {0: GAVE_UP, 1: State(where=("train.py", 10, "step"))},
        "raised 0",
    ),
    "died in a call": (made("send:1...", ""), {0: State(Ending.DIED, "died", at=1)}, "died 0"),
    "no calls": ([], {}, "not-distributed"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_who_hangs_computes_raised_or_died(case):
    calls, states, expected = OTHERS[case]
    kind, *guilty = expected.split()
    check(diagnose(calls, states), kind, *map(int, guilty))
    # subtle: a machine does not tell others of a message that failed.
    if not any(call.error and call.peer is not None for call in calls):
        check(judge(across_machines(calls), states, 0, stalled=True), kind, *map(int, guilty))


def test_the_example_reads_as_promised():
    verdict = diagnose(example(), stalled=False)
    assert verdict.says.splitlines() == [
        "hang: rank 2 never joined all_reduce #2 of group WORLD",
        "  ranks 0,1,3  in all_reduce()        train.py:88 in step",
        "  rank  2      in recv(src=1, tag=0)  train.py:61 in step",
        "  -> circular wait: 1 -> 2 -> 1",
    ]
    assert (verdict.cycle, verdict.group, verdict.seq) == ((1, 2), "WORLD", 2)
    assert [(call.rank, call.line) for call in verdict.guilty] == [(2, 61), (1, 88)]


def mesh(rounds):
    """Four ranks in rows (0, 1) and (2, 3) and columns, and rank 1 leaves out the last row."""
    program = Program(4)
    for number, rank in itertools.product(range(rounds), range(4)):
        row, column, last = rank // 2 * 2, rank % 2, number == rounds - 1
        if not (last and rank == 1):
            both = {"members": (row, row + 1), "left": None if last and rank == 0 else LEFT}
            program.call(rank, "all_reduce", group=f"row {row}", line=5, **both)
        if not (last and rank == 0):
            both = {"members": (column, column + 2), "left": None if last and rank == 2 else LEFT}
            program.call(rank, "all_reduce", group=f"column {column}", line=6, **both)
    return program


@pytest.mark.parametrize(("rounds", "guilty"), [(1, (1, 0)), (4, (1,))], ids=["first", "fourth"])
def test_of_a_circle_only_the_rank_that_came_another_way_is_blamed_if_it_came_before(
    rounds, guilty
):
    verdict = diagnose(wait_in(mesh(rounds), [1, 3], "barrier", line=8).calls)
    check(verdict, "hang", *guilty)
    headline, *_, cycle, barrier = verdict.says.splitlines()
    assert headline == f"hang: rank 1 never joined all_reduce #{rounds} of group row 0"
    assert cycle == "  -> circular wait: 0 -> 1 -> 0"
    assert barrier == "  ranks 0,2 never joined barrier #1 of group WORLD"


def test_all_circles_are_named():
    verdict = diagnose(made("recv:2...", "recv:3...", "recv:0...", "recv:1..."))
    check(verdict, "hang", 0, 1, 2, 3)
    headline, *_, one, other = verdict.says.splitlines()
    assert headline == "hang: ranks 0,2 wait for each other; ranks 1,3 wait for each other"
    assert (one, other) == ("  -> circular wait: 0 -> 2 -> 0", "  -> circular wait: 1 -> 3 -> 1")


def test_on_a_gpu_a_rank_waits_in_a_call_that_it_has_left_when_nothing_moves():
    gpu = {"device": "cuda", "backend": "nccl"}
    program = Program(4).all("all_reduce", **gpu).all("all_reduce", ranks=[0, 1, 3], **gpu)
    elsewhere = dict.fromkeys(range(4), COMPUTES)
    check(diagnose(program.calls, elsewhere), "slow", 2)
    check(diagnose(program.calls, elsewhere, stalled=False), "ok")


def test_on_a_gpu_ranks_whose_first_messages_connect_them_do_not_hang():
    gpu = {"device": "cuda", "backend": "nccl"}
    calls = [replace(call, **gpu) for call in made("isend:1...", "isend:0...")]
    check(diagnose(calls, stalled=False), "ok")
    check(diagnose(calls), "hang", 0, 1)


def test_ranks_that_sit_in_one_call_together_are_named_with_it_and_not_with_a_later_one():
    """As where new_group(use_local_synchronization=True) gives the group two names."""
    program = wait_in(Program(3), [0], group="1", members=(0, 1))
    both = {"group": f"{MADE_BY}1,2", "members": (1, 2), "ranks": ((1, 2),)}
    for rank in (1, 2):
        program.call(rank, "new_group", left=None, **both)
    verdict = diagnose(program.calls)
    check(verdict, "hang", 1, 2)
    headline = "hang: ranks 1,2 wait in new_group #1 of ranks 1,2, and nothing moves\n"
    assert verdict.says.startswith(headline)


def test_a_report_says_what_each_rank_does_and_where():
    program = Program(9).all("all_reduce", [2, 5], line=12)
    wait_in(program, [6, 8], "barrier", line=14).call(5, "destroy_process_group", line=15)
    states = {
        0: State(
            Ending.RAISED, "ValueError: no", ("train.py", 30, "<module>"), at=1, machine="host-a"
        ),
        1: State(),
        2: State(Ending.DIED, "was killed by SIGKILL", at=2),
        3: State(Ending.RETURNED),
        4: State(where=LOAD, is_old=True, machine="host-b"),
        6: State(Ending.DIED, "was killed by SIGKILL", at=2),
        7: State(Ending.MISSING, "no process has come with this rank"),
        8: State(text="is stopped", stopped=True),
    }
    verdict = diagnose(program.calls, states)
    check(verdict, "raised", 0)
    lines = [" ".join(line.split()) for line in verdict.says.splitlines()]
    assert lines == [
        "raised: rank 0: ValueError: no",
        "rank 0 raised ValueError: no train.py:30 on host-a",
        "rank 1 no call yet",
        "rank 2 was killed by SIGKILL, last in all_reduce() train.py:12 in step",
        "rank 3 returned",
        "rank 4 computing, last seen train.py:44 in load on host-b",
        "rank 5 computing, last in destroy_process_group() train.py:15 in step",
        "rank 6 was killed by SIGKILL in barrier() train.py:14 in step",
        "rank 7 no process has come with this rank",
        "rank 8 stopped in barrier() train.py:14 in step",
    ]
    assert verdict.machines == {0: "host-a", 4: "host-b"}


def test_ranks_that_do_the_same_share_a_line_and_of_many_lines_twelve_are_shown():
    program = wait_in(Program(20), range(1, 20), "barrier", line=lambda r: max(r, 4))
    lines = diagnose(program.calls, {0: ENDED}).says.splitlines()
    assert lines[2].split()[:2] == ["ranks", "1,2,3,4"]
    assert lines[13:] == ["  ... and 5 more kinds of ranks"]


UNHEARD = State(Ending.UNHEARD, "does not answer", machine="host-b")
# Ranks that cannot take part: their states -> the guilty, and a part of the report.
ABSENT = {
    "stopped": ({1: State(stopped=True)}, (1,), "rank 1 stopped, as by SIGSTOP"),
    "unheard": ({1: UNHEARD}, (1,), "host-b does not answer: rank 1 cannot be reached"),
    "two machines": (
        {1: UNHEARD, 2: replace(UNHEARD, machine="host-c")},
        (1, 2),
        "host-b, host-c do not answer: ranks 1,2 cannot be reached",
    ),
    "unasked": ({1: State(Ending.UNASKED, "cannot be asked")}, (1,), "rank 1 cannot be asked"),
}


@pytest.mark.parametrize("case", ABSENT)
def test_ranks_that_cannot_take_part_are_named_when_nothing_moves(case):
    states, guilty, text = ABSENT[case]
    calls = wait_in(Program(3), [rank for rank in range(3) if rank not in states]).calls
    check(diagnose(calls, states, stalled=False), "ok")
    verdict = diagnose(calls, states)
    check(verdict, "hang", *guilty)
    assert text in verdict.says


def joining(rank, world_size=3, meets="host:1", launched_as=None, absent=()):
    """A world of which one rank has come so far."""
    call = Call("init_process_group", rank=rank, file="train.py", line=7, function="main")
    own = {rank: call}
    launched_as = {rank: rank if launched_as is None else launched_as}
    lines = {rank: ("waits", "train.py:7")}
    return JoiningWorld(0, world_size, [*absent], own, own, launched_as, {rank: meets}, lines)


def test_a_process_that_joins_as_another_rank_than_its_launcher_gave_it_is_named():
    worlds = [joining(0, absent=[1, 2]), joining(0, launched_as=2, absent=[1, 2]), joining(1)]
    verdict = never_met(worlds)
    check(verdict, "hang", 2)
    assert "rank 2 joins as rank 0, which another is" in verdict.says
    assert (verdict.group, verdict.seq) == ("WORLD", 1)


@pytest.mark.parametrize(
    ("odd", "field", "note"),
    [
        ({"world_size": 4}, "world_size", "world_size=3 on ranks 0,2; world_size=4 on rank 1"),
        ({"meets": "host:2"}, "store", "host:1 on ranks 0,2; host:2 on rank 1"),
    ],
)
def test_ranks_that_wait_for_another_size_or_in_another_place_are_named(odd, field, note):
    worlds = [joining(0), joining(1, **odd), joining(2)]
    verdict = never_met(worlds)
    check(verdict, "mismatch", 1, field=field)
    assert f"{field} of init_process_group: rank 1 against ranks 0,2" in verdict.says
    assert note in verdict.says
    assert set(verdict.lines) == {0, 1, 2}
    assert never_met([joining(rank) for rank in range(3)]) is None
    assert never_met([*worlds, joining(1)]) is None  # a rank is there twice: two programs


def test_the_shortest_cycle_is_found_in_whatever_graph():
    for seed in range(300):
        draw = random.Random(seed)
        n = draw.randint(1, 6)
        edges = {one: draw.sample(range(n), draw.randint(0, min(2, n))) for one in range(n)}
        found = find_cycle(edges)
        lengths = [  # a path of edges that ends where it began
            length
            for length in range(1, n + 1)
            for path in itertools.permutations(range(n), length)
            if all(b in edges[a] for a, b in zip(path, (*path[1:], path[0]), strict=True))
        ]
        assert len(found) == min(lengths, default=0), f"seed {seed}"
        assert all(b in edges[a] for a, b in zip(found, (*found[1:], *found[:1]), strict=True))


@pytest.mark.parametrize("name", ["broadcast", "scatter", "reduce", "gather"])
@pytest.mark.parametrize("waits", ["root", "other"])
def test_a_collective_waits_for_its_root_or_its_root_waits_for_all(name, waits):
    rank, root = (0, 0) if waits == "root" else (1, 0)
    matching = Matching(Program(3).call(rank, name, peer=root, left=None).calls)
    takes = name in ("reduce", "gather")
    awaited = {"root": [1, 2] if takes else [], "other": [] if takes else [0]}
    assert waits_for(matching, matching.last[rank]) == awaited[waits]


def test_a_call_that_was_seen_under_way_is_known_with_its_error_when_it_has_left():
    (call,) = made("recv:1...")
    ended = replace(call, left=LEFT, error=LOST.text)
    assert Matching([call, ended]).last[0] is ended


def test_a_wait_is_shown_with_the_arguments_of_its_call():
    program = Program(2).call(0, "irecv", peer=1)
    program.call(0, "wait", awaited="irecv", of=0, peer=1, tag=0, left=None)
    (guilty, _) = as_json(diagnose(program.calls, {1: ENDED}), [], 1)["guilty"]
    assert (guilty["call"], guilty["args"]) == ("irecv", "src=1, tag=0")


def test_a_skipped_call_is_found_where_the_ranks_fell_out_of_step():
    program = Program(3)
    for i in range(4):
        program.all("all_reduce", line=10)
        program.all("all_reduce", [rank for rank in range(3) if rank != 2 or i != 1], line=12)
    program.calls[-2:] = [replace(call, left=None) for call in program.calls[-2:]]
    verdict = diagnose(program.calls, {2: ENDED})
    check(verdict, "hang", 2)
    assert (verdict.seq, verdict.guilty[0].seq, verdict.guilty[0].line) == (8, 3, 10)
    note = "since #4: ranks 0,1 at train.py:12 in step; rank 2 at train.py:10 in step"
    assert f"out of step {note}" in verdict.says


def test_a_call_that_one_rank_makes_more_is_found_before_the_one_that_nobody_joins():
    program = Program(3).call(0, "all_reduce", line=34).all("all_reduce", line=35)
    program.calls[-3] = replace(program.calls[-3], left=None)
    verdict = diagnose(program.calls, {1: ENDED, 2: ENDED})
    check(verdict, "hang", 0)
    assert (verdict.guilty[0].seq, verdict.guilty[0].line) == (0, 34)
    note = "since #1: rank 0 at train.py:34 in step; ranks 1,2 at train.py:35 in step"
    assert f"out of step {note}" in verdict.says


@pytest.mark.parametrize("n", [2, 3])
def test_roots_that_call_from_a_line_of_their_own_are_not_out_of_step(n):
    program = Program(n)
    for root in range(n):
        program.all("broadcast", peer=root, line=lambda r, root=root: 5 if r == root else 7)
    wait_in(program, range(1, n), line=9)
    verdict = diagnose(program.calls, {0: ENDED})
    assert verdict.kind.verdict == "hang"
    assert "out of step" not in verdict.says


@pytest.mark.parametrize(("late", "kind"), [(9, "slow"), (3, "raised")])
def test_a_rank_that_came_after_another_had_given_up_is_late(late, kind):
    gave_up = {"entered": 2, "left": 5, "error": "RuntimeError: Timed out waiting 3ms"}
    program = Program(2).call(1, "all_reduce", **gave_up)
    calls = program.call(0, "all_reduce", entered=late, left=11).calls
    asked = {"awaited": "all_reduce", "of": 0, "seq": 0} | gave_up
    program = Program(2).call(1, "all_reduce", entered=2, left=2).call(1, "wait", **asked)
    waited = program.call(0, "all_reduce", entered=late, left=11).calls
    states = {1: State(Ending.RAISED, gave_up["error"], ("train.py", 10, "step"), 6), 0: ENDED}
    for order in (calls, calls[::-1], waited):
        verdict = diagnose(order, states)
        check(verdict, kind, 0 if kind == "slow" else 1)
        if kind == "slow":
            assert (
                "rank 0 joined all_reduce #1 of group WORLD only after rank 1 had" in verdict.says
            )


@pytest.mark.parametrize(("told", "kind"), [((), "mismatch"), ((0,), "mismatch"), ((0, 1), "ok")])
def test_a_mismatch_is_forgiven_if_all_its_ranks_were_told_and_go_on(told, kind):
    errors = ["RuntimeError: no" if rank in told else None for rank in range(2)]
    ops = ["SUM", "MAX"].__getitem__
    program = Program(2).all("all_reduce", op=ops, error=errors.__getitem__)
    assert diagnose(program.all("barrier").calls).kind.verdict == kind


def test_of_messages_that_may_have_been_missed_nothing_is_said():
    matching = Matching()
    matching.since[1] = 7
    for call in message("send", "recv", floats(5), floats(4)):
        matching.note(call)
    assert judge(matching, dict.fromkeys(range(2), ENDED), 2, stalled=True).kind.verdict == "ok"


def test_a_record_of_torch_becomes_calls_of_the_group_that_it_names():
    def entry(group, seq, retired):
        return [group, seq, "gloo:all_reduce", [[4, 2]], ["Float"], retired, ["a.py", 3, "f"], ""]

    def answer(world, *entries):
        return {"world": world, "collectives": entries, "counts": [], "lost": False}

    default, other = ("0", "default_pg"), ("1", "undefined")
    answers = {
        0: answer(1, entry(default, 1, True), entry(other, 1, False)),
        1: answer(1, entry(default, 1, True)),
        2: {},
        3: answer(7, entry(default, 1, False)),
    }
    matching = match_records(answers, {group_label("1", 1): (0, 1)}, 4)
    assert matching.matched == 1  # rank 2 said nothing, and rank 3 is in another world
    (call,) = matching.open[0].values()
    assert (call.name, call.seq, call.tensors) == ("all_reduce", 0, (TensorKind("Float", (4, 2)),))
    assert (call.members, call.file, call.line, call.function) == ((0, 1), "a.py", 3, "f")


@pytest.mark.parametrize(
    ("forgotten", "joins", "headline"),
    [
        (0, True, "hang: rank 0 waits in barrier #1 of group 1, and nothing moves"),
        (0, False, "hang: rank 1 never joined barrier #1 of group 1"),
        # torch has overwritten it:
        (1, True, "hang: rank 0 waits in barrier #1 of group 1, and nothing moves"),
    ],
)
def test_a_rank_that_has_no_room_to_tell_a_collective_has_joined_it(forgotten, joins, headline):
    """Each rank tells its newest collectives, of all groups together, and how many it has made."""
    first, barrier = ("1", "undefined"), {"profiling_name": "gloo:barrier"}
    records = {rank: [record(0, 1, first, **barrier)] for rank in range(1 + joins)}
    others = [record(joins + number, number + 1, ("2", "undefined")) for number in range(9)]
    records[1] = (records.get(1, []) + others)[forgotten:]
    answers = {
        rank: json.loads(
            json.dumps({"world": 1, **rank_log.newest_collectives(records[rank], 0, most=5)})
        )
        for rank in records
    }
    c10d = match_records(answers, {"1": (0, 1), "2": (1,)}, 2)
    states = {0: State(where=("", 0, ""), in_torch=True), 1: ENDED}
    verdict = judge(Matching(), states, 2, stalled=True, c10d=c10d)
    assert verdict.says.splitlines()[0] == headline
    assert ("not judged: calls of rank 1 are no longer" in verdict.says) == bool(forgotten)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("reduce(a)\nreduce(b)\nreduce(b)  # the other way round\nreduce(a)\n", "mismatch"),
        ("reduce(a)\nreduce(b)\nreduce(a)\nreduce(b)\n", "ok"),
        ("reduce(a)\nreduce(a)\nreduce(a)\nreduce(a)\n", "ok"),
        ("", "ok"),
    ],
)
def test_equal_calls_in_another_order(text, kind, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(text)
    program, call = Program(3), {"op": "SUM", "file": str(file)}
    program.all("all_reduce", line=lambda r: 3 if r == 1 else 1, **call)
    program.all("all_reduce", line=lambda r: 4 if r == 1 else 2, **call)
    verdict = diagnose(program.calls)
    assert verdict.kind.verdict == kind
    assert [(call.rank, call.line) for call in verdict.guilty] == [(1, 3)] * (kind == "mismatch")


def a_correct_program(n):
    program = Program(n)
    for root in range(n):
        program.all(
            "broadcast",
            peer=root,
            tensors=(FOUR,),
            line=[1 + (r == root) for r in range(n)].__getitem__,
        )
    program.all("barrier", [0, 1], group="1", members=(0, 1))
    program.all("barrier", [1, 2], group="2", members=(1, 2))
    program.all("isend", peer=lambda r: (r + 1) % n, tensors=(FOUR,))
    program.all("irecv", peer=lambda r: (r - 1) % n, tensors=(TensorKind("float32", (2, 2)),))
    program.all("all_gather_into_tensor", [0], tensors=floats(4 * n, 4))
    program.all("all_gather_single", range(1, n), tensors=floats(4 * n, 4))
    uneven = tuple(range(1, n + 1))
    splits = {"splits": lambda r: (uneven, (r + 1,) * n)}
    program.all("all_to_all_single", tensors=lambda r: floats(sum(uneven), n * (r + 1)), **splits)
    program.all("gather", peer=1, tensors=lambda r: (FOUR,) * (1 + n * (r == 1)))
    program.call(1, "recv", tag=7, source=2).call(2, "send", peer=1, tag=7)
    refused = {"error": "ValueError: this cannot be what you want"}
    program.call(0, "all_gather", tensors=(FIVE,), **refused)
    program.call(1, "recv", peer=2, tag=8, tensors=(FIVE,), **refused)
    program.call(1, "recv", peer=2, tag=8, tensors=(FOUR,))
    program.call(2, "send", peer=1, tag=8, tensors=(FOUR,))
    program.all("all_reduce", tensors=(FIVE,), op="SUM", **refused)
    program.all("all_reduce", tensors=(FOUR,), op="SUM")
    refused = {"error": "RuntimeError: this backend wants equal lengths"}
    tensors = [(FOUR,) * n + (one,) for one in (FOUR, FIVE, FIVE)]
    program.all("all_gather", tensors=tensors.__getitem__, **refused)
    return program.all("barrier").calls


def test_a_correct_program_is_never_suspected_in_whatever_order_its_calls_are_read():
    calls = a_correct_program(3)
    for seed in range(70):
        draw = random.Random(seed)
        queues = [
            [one for call in calls if call.rank == rank for one in as_seen(call, draw)]
            for rank in range(3)
        ]
        matching = []
        while any(queues):
            queue = draw.choice([queue for queue in queues if queue])
            matching.append(queue.pop(0))
        verdict = diagnose(matching, ALL_ENDED)
        assert verdict.kind.verdict == "ok", f"seed {seed}: {verdict.says}"


def as_seen(call, draw):
    """A log's reader sees a call when it is entered and again when it is left, or only then.

    A call that torch refuses is seen only then: the log's reader holds back what was just entered.
    """
    if was_refused(call.error or "") or draw.random() < 0.5:
        return [call]
    return [replace(call, left=None, error=None), call]


def test_a_call_that_all_ranks_were_refused_hides_no_mistake_after_it():
    program = Program(3).all("all_reduce", tensors=(FIVE,), error="ValueError: no")
    program.all("all_reduce", op=["SUM", "MAX", "SUM"].__getitem__)
    check(diagnose(program.calls), "mismatch", 1, field="op")


@pytest.mark.parametrize(
    ("unseen", "kind"),
    [(True, "ok"), (False, "mismatch")],
    ids=["its-launcher-ended-it", "it-returned"],
)
def test_a_rank_that_serves_the_others_may_still_wait_at_the_end(unseen, kind):
    calls = made("recv:any1 recv...", "send:0", "")
    assert (
        diagnose(calls, ALL_ENDED | {0: State(Ending.RETURNED, unseen=unseen)}).kind.verdict == kind
    )
    assert diagnose(calls, {1: ENDED, 2: ENDED}, stalled=False).kind.verdict == "ok"


@pytest.mark.parametrize(
    ("stalled", "kind"), [(False, "ok"), (True, "hang")], ids=["at-once", "when-nothing-moves"]
)
def test_calls_from_c_plus_plus_that_are_under_way_make_a_circle_only_when_nothing_moves(
    stalled, kind
):
    """They are counted apart from those that the program itself makes in the same group, and may be
    waited for later.
    """
    seen = Program(2).all("all_reduce", group="1").all("all_reduce", group="2")
    native = Program(2).all("all_reduce", group="1").all("all_reduce", group="2")
    native.all("all_gather", group=["1", "2"].__getitem__, left=None)
    states = dict.fromkeys(range(2), State(where=("train.py", 12, "step"), in_torch=True))
    verdict = judge(Matching(seen.calls), states, 2, stalled, Matching(native.calls))
    assert (verdict.kind.verdict, set(verdict.cycle)) == (kind, {0, 1} if stalled else set()), (
        verdict.says
    )


def test_a_call_that_waits_too_long_is_forgotten_and_the_others_still_match():
    matching, n = Matching(), WINDOW + 100

    def note_all(rank, name):
        for number in range(n):
            both = {"members": (0, 1), "tensors": floats(number), "left": LEFT}
            matching.note(Call(name, rank=rank, number=2 * number, peer=1 - rank, tag=0, **both))
            matching.note(Call("all_reduce", rank=rank, number=2 * number + 1, seq=number, **both))

    note_all(0, "isend")
    assert len(matching.messages.unmatched()) == WINDOW
    assert len(matching.sequences["WORLD", ""].pending) == WINDOW
    note_all(1, "irecv")
    assert matching.difference is None
    assert (matching.messages.unmatched(), matching.waiting()) == ([], [])
    assert not any(matching.open.values())
    assert judge(matching, {0: ENDED, 1: ENDED}, 2, stalled=True).kind.verdict == "ok"


def test_calls_from_c_plus_plus_make_a_circle_with_one_from_python_only_when_nothing_moves():
    ddp = Program(4)
    for _ in range(3):
        ddp.all("all_reduce")
    ddp.all("all_reduce", [0, 1, 3], left=None)
    own = Matching(Program(4).call(2, "barrier", left=None).calls)
    states = {rank: State(in_torch=rank != 2) for rank in range(4)}
    assert judge(own, states, 4, stalled=False, c10d=Matching(ddp.calls)).kind.verdict == "ok"
    verdict = judge(own, states, 4, stalled=True, c10d=Matching(ddp.calls))
    check(verdict, "hang", 2)
    assert verdict.cycle == (0, 2)


@pytest.mark.parametrize("aborted", [2, 0], ids=["in a call of its own", "in one from C++"])
def test_an_abort_amid_calls_of_python_and_c_plus_plus_that_met_is_their_mismatch(aborted):
    own = Program(3).call(2, "all_reduce", tensors=(FOUR,), op="SUM", line=12, left=None)
    native = Program(3)
    alive = tuple({0, 1, 2} - {aborted})
    for rank in alive:
        tensors = (FOUR if rank == 2 else FIVE,)
        native.call(rank, "all_reduce", tensors=tensors, members=alive, error=LOST.text)
    died = State(Ending.DIED, "was killed by SIGABRT (signal 6)", LOST.where, 1, signal=6)
    states = {0: LOST, 1: LOST, 2: LOST, aborted: died}
    verdict = judge(Matching(own.calls), states, 3, stalled=False, c10d=Matching(native.calls))
    check(verdict, "mismatch", 2, field="shape")


def test_gloo_ended_a_rank_whose_call_is_not_known_for_a_message_that_another_sent_elsewhere():
    died = State(
        Ending.DIED, "by SIGABRT", ("train.py", 30, "f"), 1, signal=6, torch_does="reduces"
    )
    verdict = diagnose(made("", "all_reduce!"), {0: died, 1: LOST}, stalled=False)
    check(verdict, "mismatch", 0, 1, field="call")
    assert "different calls: gloo ended rank 0" in verdict.says
    together = made("all_reduce...", "all_reduce!")
    assert diagnose(together, {0: died, 1: LOST}, stalled=False).kind.verdict == "died"


def test_a_rank_that_lost_others_is_not_blamed_while_one_still_runs_and_may_say_why():
    calls = made("all_reduce!", "", "")
    states = {0: LOST, 1: ENDED, 2: State()}
    assert lost(Snapshot(Matching(calls), Matching(), states, stalled=False)) is None
    assert lost(Snapshot(Matching(calls), Matching(), states, stalled=True)) is not None


# What is said beside the verdict: the calls, the states, and the note.
ASIDES = {
    "a ring with the wrong source": (
        made("irecv:1 isend:1 wait:1...", "irecv:2 isend:2 wait:1...", "irecv:0 isend:0 wait:1..."),
        {},
        "no rank sent what rank 0 receives by irecv(src=1, tag=0)",
    ),
    "a send that its rank never waited for": (
        made("isend:1", "recv:0..."),
        {0: ENDED},
        "rank 0 never waited for isend(dst=1, tag=0)",
    ),
    "an exception that was swallowed": (
        RANK_1_IS_ABSENT,
        {1: State(Ending.RETURNED, caught="KeyError: 'label' (train.py:8)")},
        "rank 1 caught KeyError: 'label' (train.py:8)",
    ),
}


@pytest.mark.parametrize(("calls", "states", "note"), ASIDES.values(), ids=ASIDES)
def test_what_helps_to_understand_is_said_beside_the_verdict(calls, states, note):
    verdict = diagnose(calls, states)
    assert note in "\n".join(verdict.notes), verdict.says


def test_a_rank_that_left_the_group_may_have_joined_a_cpp_call_that_is_not_known_yet():
    own = Program(3).call(1, "destroy_process_group")
    native = wait_in(Program(3), [0, 2])
    states = {rank: State(in_torch=rank != 1) for rank in range(3)}
    verdict = judge(Matching(own.calls), states, 3, stalled=False, c10d=Matching(native.calls))
    check(verdict, "ok")


def test_a_mismatch_after_a_skipped_call_is_reported_at_the_skipped_call():
    program = Program(4)
    for step in range(6):
        program.all("all_reduce", line=10).all("all_reduce", [3] if step == 1 else [], line=12)
    program.all("barrier", line=14)
    verdict = diagnose(program.calls)
    assert (verdict.field, verdict.seq) == ("call", 7)
    assert [(call.rank, call.line) for call in verdict.guilty] == [(3, 12)]
    note = "since #3: rank 3 at train.py:12 in step; ranks 0,1,2 at train.py:10 in step"
    assert f"out of step {note}" in verdict.says


@pytest.mark.parametrize("lost", ["all_reduce...", "all_reduce!"], ids=["waits", "lost it"])
@pytest.mark.parametrize(
    ("died", "kind", "rank"),
    [(5, "hang", 1), (1, "died", 2)],
    ids=["killed by its launcher", "of its own"],
)
def test_a_rank_that_dies_waiting_for_one_that_had_left_is_not_blamed(died, kind, rank, lost):
    states = {0: State(), 1: State(Ending.RETURNED, at=3), 2: State(Ending.DIED, "died", at=died)}
    check(diagnose(made("all_reduce...", "", lost), states), kind, rank)


def test_the_rank_that_left_before_a_call_was_done_is_blamed_and_not_its_peers():
    program = Program(2).call(0, "isend", peer=1, line=5)
    calls = program.call(1, "recv", peer=0, line=8, error=LOST.text).calls
    states = {0: State(Ending.RETURNED, at=1), 1: raised(LOST.text, 2, ("train.py", 8, "step"))}
    verdict = diagnose(calls, states)
    check(verdict, "raised", 0)
    assert verdict.guilty[0].line == 5


def test_a_collective_that_has_no_record_is_compared_by_what_its_calls_say():
    """The Flight Recorder has names of its own: of backends, and those given to dist.record_comm."""
    usual = {"members": (0, 1), "tensors": (FOUR,)}
    calls = {rank: Call("FSDP::all_gather (layer1)", rank=rank, **usual) for rank in range(2)}
    assert compare(calls) is None
    calls[1] = replace(calls[1], tensors=(TensorKind("int64", (4,)),))
    assert compare(calls).field == "dtype"


def what(**fields):
    members, fields = tuple(range(512)), {"tensors": (FOUR,), "line": 3} | fields
    return CallArgs("all_to_all_single", members=members, file="train.py", **fields)


SITE = "/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (["torch/a.py", "mine.py", "library/b.py", "program.py"], 1),
        (["torch/a.py", "library/b.py", "tool/main.py", "tool/main.py", "torch/run.py"], 2),
        (["torch/a.py", "<frozen runpy>"], None),
        ([], None),
    ],
    ids=["innermost of the program", "innermost of an installed program", "torch alone", "none"],
)
def test_which_frame_of_a_stack_a_report_names(files, named):
    def path(name):
        return name if name in ("mine.py", "program.py") or "<" in name else f"{SITE}/{name}"

    frames = [(path(name), line, "f") for line, name in enumerate(files, 1)]
    assert stack.named(frames) == (None if named is None else frames[named])


def test_a_lesson_in_the_wheel_is_the_program_that_a_report_names(monkeypatch):
    monkeypatch.setattr(stack, "_PACKAGE", f"{SITE}/collectives/")
    monkeypatch.setattr(stack, "_COURSE", f"{SITE}/collectives/_course/")
    paths = ["torch/a.py", "collectives/_course/lessons/barrier.py", "collectives/launcher/rank.py"]
    frames = [(f"{SITE}/{path}", 1, "f") for path in paths]
    assert stack.named([*frames, ("<string>", 1, "<module>")]) == frames[1]


@pytest.fixture
def log(tmp_path):
    with open(tmp_path / "log", "xb+") as file:
        return Writer(file, 1, 2), LogReader(file)


def test_a_log_is_read_as_it_was_written(log):
    writer, reader = log
    number = writer.enter(7, None, None, what(splits=((1, 2), None)), {})
    (call,) = reader.poll(has_ended=True)
    assert (call.rank, call.seq, call.of, call.left) == (1, 7, None, None)
    assert (len(call.members), call.tensors) == (512, (FOUR,))
    assert (call.splits, call.file, call.line) == (((1, 2), None), "train.py", 3)
    writer.leave(number, "ValueError: no", 3)
    (call,) = reader.poll()
    assert (call.error, call.source, call.left >= call.entered) == ("ValueError: no", 3, True)
    assert list(reader.poll()) == []


def test_a_call_that_torch_refuses_at_once_is_first_read_with_its_error(log, monkeypatch):
    """A call that has just been entered is held back for a tenth of a second, or until its process
    ends.
    """
    now = time.monotonic_ns()
    monkeypatch.setattr(call_log.time, "monotonic_ns", lambda: now)
    writer, reader = log
    refused = writer.enter(0, None, None, what(), {})
    assert list(reader.poll()) == []
    writer.leave(refused, "ValueError: no", None)
    assert [call.error for call in reader.poll()] == ["ValueError: no"]
    writer.enter(0, None, None, what(), {})
    assert list(reader.poll()) == []
    now += 100_000_000
    assert [call.number for call in reader.poll()] == [1]
    writer.enter(1, None, None, what(), {})
    assert [call.number for call in reader.poll(has_ended=True)] == [2]


def test_calls_of_several_threads_are_read_once_each_also_before_the_first_is_written(
    log, monkeypatch
):
    writer, reader = log
    found, threads = [], iter([*"12"])

    def another_thread_goes_on():
        if next(threads, None):
            writer.leave(writer.enter(5, None, None, what(), {}), None, None)
            found.extend(reader.poll())
        return 1

    monkeypatch.setattr(call_log.time, "monotonic_ns", another_thread_goes_on)
    for seq in (6, 7):
        writer.leave(writer.enter(seq, None, None, what(), {}), None, None)
        found.extend(reader.poll())
    ends = sorted((call.number, call.seq) for call in found if call.left)
    assert (ends, reader.lost) == ([(0, 6), (1, 5), (2, 5), (3, 7)], 0)


def test_a_log_that_is_read_too_late_says_how_many_calls_are_lost(log):
    writer, reader = log
    usual = what()
    for number in range(SLOTS + 10):
        writer.leave(writer.enter(number, None, None, usual, {}), None, None)
    calls = list(reader.poll())
    assert (len(calls), calls[0].number, reader.lost) == (SLOTS, 10, 10)


def test_of_a_call_that_is_too_long_for_the_log_its_name_and_group_are_known(log):
    writer, reader = log
    writer.enter(0, None, None, what(tensors=(FOUR,) * 9999), {})
    (call,) = reader.poll(has_ended=True)
    assert (call.name, call.group, call.tensors) == ("all_to_all_single", "WORLD", ())


def test_ranks_of_two_machines_that_read_only_their_own_calls_are_judged_as_one_world(monkeypatch):
    """Also where each machine has forgotten how it began."""
    n = 50
    program = Program(4)
    for number in range(n):
        left, tensors = None if number == n - 1 else LEFT, floats(number)
        program.all("isend", peer=lambda r: (r + 1) % 4, tensors=tensors)
        program.all("irecv", peer=lambda r: (r - 1) % 4, tensors=tensors)
        joining = range(4 if left else 3)
        program.all("all_reduce", joining, op="SUM", tensors=tensors, left=left)
    states = {rank: State() for rank in range(3)} | {3: ENDED}
    machines = []
    for ranks, window in (((0, 1), 20), ((2, 3), 10)):
        monkeypatch.setattr("collectives.diagnosis.rules.matching.WINDOW", window)
        machines.append(Matching(call for call in program.calls if call.rank in ranks))
    merged = merge(told(machines[rank // 2], rank) for rank in range(4))
    verdict = judge(merged, states, 4, stalled=True)
    check(verdict, "hang", 3)
    assert verdict.seq == n
    odd = replace(machines[0].open[0][3 * n - 1], op="MAX", rank=3)
    machines[1].note(odd)
    merged = merge(unmatched(machines[rank // 2], rank) for rank in range(4))
    check(judge(merged, states, 4, stalled=True), "mismatch", 3, field="op")


def test_texts_that_never_repeat_take_the_place_of_the_oldest_and_no_call_is_told_wrongly(
    log, monkeypatch
):
    monkeypatch.setattr(call_log, "_RING", 2**19)
    writer, reader = log
    usual = what()
    for number in range(200):
        writer.enter(number, None, None, replace(what(), line=number), {})
        writer.leave(writer.enter(number, None, None, usual, {}), "RuntimeError: no", None)
    calls = list(reader.poll(has_ended=True))
    for call in calls:
        usual = (3, "RuntimeError: no") if call.number % 2 else (call.number // 2, None)
        assert (call.line, call.error) == usual
    assert (calls[-1].number, reader.lost) == (399, 400 - len(calls))
    assert len(calls) > 100
