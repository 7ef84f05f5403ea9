"""The picture of a step shows the calls that it is about, and says how many there were."""

from figures import texts
from hand_made import program

from collectives.pictures import illustration
from collectives.recording.call import Call


def collective(seq, before, after, name="all_reduce", **fields) -> list[Call]:
    """One collective of all ranks; `fields` are the same for all of them, or lists by rank."""
    return [
        Call(
            rank=rank,
            number=seq,
            name=name,
            members=tuple(range(len(before))),
            seq=seq,
            left=1,
            before={"tensor": before[rank]},
            after={"tensor": after[rank]},
            **{
                key: value[rank] if isinstance(value, list) else value
                for key, value in {"op": "SUM", "line": 10, **fields}.items()
            },
        )
        for rank in range(len(before))
    ]


def words(figure) -> list[str]:
    return [text.get_text() for text in texts(figure)]


def test_several_calls_are_shown_and_counted():
    calls = collective(0, [[1], [2]], [[2], [2]], op="MAX") + collective(1, [[1], [2]], [[3], [3]])
    written = words(illustration.illustrate("softmax", calls))
    assert {"call 1 of 2", "(MAX)", "call 2 of 2", "(SUM)"} <= set(written)


def test_one_call_is_not_counted():
    figure = illustration.illustrate("total", collective(0, [[1], [2]], [[3], [3]]))
    assert "all_reduce(SUM)" in words(figure)
    assert not any("call" in word for word in words(figure))


def test_of_many_calls_those_of_other_kinds_are_shown_first():
    calls = [
        call
        for seq in range(6)
        for call in collective(seq, [[1], [2]], [[3], [3]], line=20 if seq == 4 else 10)
    ]
    shown = [word for word in words(illustration.illustrate("loop", calls)) if "of 6" in word]
    assert shown == ["call 1 of 6", "call 2 of 6", "call 5 of 6"]


def test_ranks_that_meet_in_different_lines_are_told():
    calls = collective(0, [[1], [100], [1]], [[102]] * 3, line=[127, 130, 127])
    told = " ".join(words(illustration.illustrate("order", calls)))
    assert "ranks 0 and 2 in line 127, rank 1 in line 130" in told


def test_ranks_that_ask_for_different_reductions_are_told_and_no_sum_is_claimed():
    figure = illustration.illustrate(
        "ops", collective(0, [[1], [2]], [[3], [3]], op=["MAX", "SUM"])
    )
    told = " ".join(words(figure))
    assert "rank 0 for MAX, rank 1 for SUM" in told
    assert "no rank's values give this" in told


def test_ranks_that_only_meet_and_leave_have_no_picture():
    life = "init_process_group barrier destroy_process_group"
    assert illustration.illustrate("life", program(life, life)) is None
    late = "init_process_group barrier..."
    assert illustration.illustrate("late", program(life, late)) is not None


def test_a_step_that_breaks_off_is_shown_by_order_unless_that_is_luck():
    calls = [*collective(0, [[1], [2]], [[3], [3]]), *program("barrier!")]
    calls = [*calls[:2], Call(**{**vars(calls[2]), "name": "all_reduce", "number": 1, "seq": 1})]
    assert "all_reduce\nfailed" in words(illustration.illustrate("lost", calls))
    assert "before" in words(illustration.illustrate("lost", calls, is_cut_short=True))


def untraceable(**fields) -> list[Call]:
    """A collective whose values all ranks have, so that nobody can say whose they are."""
    everyone = [[7, 7, 7]] * 3
    calls = collective(0, [[7]] * 3, everyone, name="all_gather", op=None, **fields)
    return [
        Call(**{**vars(call), "after": {"tensor_list": call.after["tensor"]}}) for call in calls
    ]


def test_values_that_all_ranks_have_are_no_picture():
    calls = collective(0, [[7], [7], [7]], [[7], [7], [8]], name="broadcast", op=None, peer=0)
    assert illustration.data(calls) is not None
    assert illustration.illustrate("same", untraceable()) is None


def test_such_a_collective_is_shown_by_order_if_the_ranks_go_on_meanwhile():
    calls = untraceable(is_async=True)
    waits = {"number": 1, "name": "wait", "of": 0, "awaited": "all_gather", "is_async": False}
    calls += [Call(**{**vars(call), **waits}) for call in calls]
    written = " ".join(words(illustration.illustrate("go_on", calls)))
    assert "all_gather" in written
    assert "nobody has the result before the last one has come" in written
