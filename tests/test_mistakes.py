"""Every mistake shows its symptom, and its cure shows none."""

import linecache
import re
import runpy
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

from collectives.lesson import files as lesson_files
from collectives.lesson import mistakes as mistake
from collectives.lesson.chapters import CHAPTERS
from collectives.lesson.make import mistakes_table
from collectives.lesson.outcome import RankOutcome
from collectives.lesson.runner import run_and_print
from collectives.lesson.show import Display
from collectives.lesson.step import SYMPTOMS, cure
from collectives.lesson.step import mistake as mark_mistake

FOLDER = Path(__file__).parent.parent / "lessons" / "mistakes"
CHAPTER = CHAPTERS["mistakes"]
PATHS = lesson_files.of_chapter(CHAPTER)
STEPS = {step.__name__: step for path in PATHS for step in lesson_files.load(path).STEPS}
MISTAKES = [name for name, step in STEPS.items() if step.world.symptom]
CURES = [name for name in STEPS if name not in MISTAKES]
OUTCOMES = mistakes_table.rows(mistakes_table.PART.read())
TABLE = {name: cells for mistakes in OUTCOMES.values() for name, cells in mistakes.items()}
LEVELS = list(mistakes_table.LEVELS.values())

# What else may come, though the runs of the table did not see it.
ALSO = {
    # DETAIL lets the ranks meet before the call, so that nobody is late: then it is a race, which a
    # reader may win.
    ("forgotten_wait", "DETAIL"): {"goes unnoticed"},
    # Rank 0 may lose rank 1 before it can name it.
    ("one_rank_raises", "DETAIL"): {"raises an error on rank 1: KeyError: 'loss'"},
    # With DETAIL torch 2.13 dies when it makes a DDP model. Which rank is first is luck.
    **{
        (name, "DETAIL"): {f"dies on rank {rank} (SIGSEGV)" for rank in range(2)}
        for name in ("unused_parameter", "module_in_the_keys")
    },
}

lesson = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])


# It asks torch: what the lessons show is asked below, of the run that is diagnosed.
@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", MISTAKES)
def test_what_becomes_of_a_mistake_is_what_the_table_says(name, level):
    allowed = TABLE[name][LEVELS.index(level)] | ALSO.get((name, level), set())
    assert mistakes_table.outcome(STEPS[name], level) in allowed


@pytest.mark.parametrize("name", CURES)
def test_a_cure_shows_no_symptom(name):
    outcomes, results = mistake.run_isolated(STEPS[name])
    assert outcomes == [RankOutcome("returned")] * STEPS[name].world.ranks
    assert None not in results, "a cure returns what it got"


@pytest.mark.parametrize("name", MISTAKES)
def test_the_symptom_that_a_mistake_declares_is_the_one_in_the_table(name):
    assert {re.match("|".join(SYMPTOMS.values()), cell)[0] for cell in TABLE[name][0]} == {
        STEPS[name].world.symptom
    }


def test_the_table_has_every_mistake_and_no_other():
    assert list(OUTCOMES) == [path.stem for path in PATHS]
    assert list(TABLE) == MISTAKES


def test_the_overview_of_the_page_says_in_short_what_the_page_says_in_full():
    assert mistakes_table.PART.read() == mistakes_table.markdown(OUTCOMES).rstrip()


# Of the mistakes that are in the calls: whom the diagnosis must name, and with which line of the
# program.
GUILTY = {
    "both_send_first": {0: "dist.send(mine, dst=1 - rank)", 1: "dist.send(mine, dst=1 - rank)"},
    "cycle_of_receives": dict.fromkeys(range(3), "dist.recv(token, src=(rank - 1) % world_size)"),
    "tags_that_do_not_match": {0: "dist.send(x, dst=1, tag=1)", 1: "dist.recv(x, src=0, tag=2)"},
    "only_rank_0_reduces": {0: "dist.all_reduce(loss)"},
    "one_batch_less": {2: "dist.all_reduce(gradient)"},
    "equal_calls_in_another_order": {1: "dist.all_reduce(penalty)"},
    "unlike_calls_in_another_order": {0: "dist.broadcast(rate, src=0)"},
    "another_call": {0: "dist.all_reduce(x)"},
    "another_length": dict.fromkeys(range(2), "dist.all_reduce(losses)"),
    "another_dtype": {0: "dist.all_reduce(count)"},
    "everybody_is_the_root": dict.fromkeys(range(2), "dist.broadcast(model, src=rank)"),
    "another_reduction": {
        0: "dist.all_reduce(x, op=dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM)"
    },
    "my_splits_both_ways": dict.fromkeys(
        range(2),
        "dist.all_to_all_single(received, tokens, output_split_sizes=splits, input_split_sizes=splits)",
    ),
    "uneven_pieces": dict.fromkeys(range(3), "dist.all_gather(pieces, mine)"),
    "buffer_too_short": {
        0: "dist.send(torch.arange(6, device=device), dst=1)",
        1: "dist.recv(x, src=0)",
    },
    "buffer_too_long": {0: "dist.send(x, dst=1)", 1: "dist.recv(x, src=0)"},
    "made_by_its_members_only": {0: "everyone = dist.new_group()"},
    "groups_in_another_order": {1: 'dist.all_reduce(gradient, group=groups["gradients"])'},
    "one_rank_raises": {1: 'total = torch.tensor([batch["loss"]], device=device)'},
    "one_rank_leaves": {2: "sys.exit(0)"},
    "slow_rank": {0: "dist.all_reduce(x, group=group)"},
    "never_destroyed": dict.fromkeys(range(2), 'dist.init_process_group("gloo")'),
    "only_rank_0_validates": {0: "dist.all_gather(losses, weight**2)"},
    "unused_parameter": dict.fromkeys(range(2), "model(x).sum().backward()"),
    "module_in_the_keys": dict.fromkeys(range(2), "loaded.load_state_dict(checkpoint[0])"),
    "every_rank_saves": {0: 'check(torch.load(path), weights, "torch.load")'},
    "two_jobs_on_one_port": {0: 'dist.init_process_group("gloo")'},
    "local_rank_for_rank": dict.fromkeys(
        (2, 3), 'dist.init_process_group("gloo", rank=me, world_size=world_size)'
    ),
    "variable_missing": dict.fromkeys(range(2), 'dist.init_process_group("gloo")'),
}


# Of those that one rank can see in itself: whom a hint must name, and with which line.
HINTED = {
    "changed_before_wait": {0: "work = dist.isend(x, dst=1)"},
    "forgotten_wait": dict.fromkeys(range(2), "dist.all_reduce(gradient, async_op=True)"),
    "column_in_place": dict.fromkeys(range(2), "dist.all_reduce(table[:, 0])"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_it_has_its_symptom_and_the_diagnosis_names_the_rank_and_the_line(name):
    outcome, verdict = mistakes_table.diagnosed(STEPS[name])
    assert outcome in TABLE[name][LEVELS.index("OFF")]
    assert mistakes_table.headline(verdict) in TABLE[name][len(LEVELS)]
    assert lines(verdict.guilty) == GUILTY.get(name, {}), verdict.says
    assert lines(hint.call for hint in verdict.hints) == HINTED.get(name, {})


def lines(calls):
    return {
        call.rank: linecache.getline(call.file, call.line).partition("  #")[0].strip()
        for call in calls
    }


# A run that does not show what it should must fail.


def test_a_mistake_without_its_symptom_fails_the_lesson(capsys):
    @mark_mistake("hangs", ranks=1)
    def harmless(rank, world_size, device):
        return rank

    assert run_and_print(harmless, Display()) == (1, "should have been: hangs")
    assert (
        capsys.readouterr().err
        == "harmless: goes unnoticed\n  every rank   returned\nshould have been: hangs\n"
    )


def test_a_cure_with_a_symptom_fails_the_lesson(capsys):
    @cure(ranks=1)
    def quack(rank, world_size, device):
        raise KeyError("x")

    assert run_and_print(quack, Display())[0] == 1
    assert (
        "quack: raises an error\n  every rank   raised KeyError: 'x'\n" in capsys.readouterr().err
    )


def test_an_unknown_symptom_is_refused():
    with pytest.raises(
        ValueError,
        match="use one of dies, raises an error, hangs, wrong numbers, breaks off, goes unnoticed",
    ):
        mark_mistake("sulks", ranks=2)


def test_the_number_of_ranks_is_the_mistake_s_own(capsys):
    assert run_and_print(STEPS["another_reduction"], Display(), nproc=2)[0] == 2
    assert "another_reduction is shown with 3 ranks: leave nproc out" in capsys.readouterr().err


# What is printed.


def test_ranks_that_share_a_fate_share_a_line():
    outcomes = [
        RankOutcome("wrong", "got 1, should be 2"),
        RankOutcome("peer_lost"),
        RankOutcome("wrong", "got 1, should be 2"),
    ]
    assert mistake.grouped(outcomes) == [
        ("ranks 0, 2", "got 1, should be 2"),
        ("rank 1", "could not go on: the others had gone"),
    ]
    assert mistake.summary(outcomes) == "wrong numbers on ranks 0, 2"


@pytest.mark.parametrize(
    "other",
    [RankOutcome("returned"), RankOutcome("peer_lost"), RankOutcome("wrong", "got 1, should be 2")],
    ids=str,
)
def test_where_one_rank_died_the_progress_of_the_others_is_left_out(other):
    outcomes = [other, RankOutcome("died", "(SIGABRT)")]
    assert mistake.grouped(outcomes) == [
        ("rank 1", "died (SIGABRT)"),
        ("rank 0", "went down with it"),
    ]
    assert mistake.summary(outcomes) == "dies on rank 1 (SIGABRT)"


def test_a_rank_that_leaves_has_not_died():
    outcomes = [RankOutcome("peer_lost"), RankOutcome("left", "(exit status 0)")]
    assert mistake.grouped(outcomes) == [
        ("rank 0", "could not go on: the others had gone"),
        ("rank 1", "left (exit status 0)"),
    ]
    assert mistake.summary(outcomes) == "breaks off on rank 0"
    assert mistake.summary(outcomes[1:]) == "goes unnoticed"


@pytest.mark.slow  # the lessons are printed under torchrun in test_doors.py
def test_the_same_is_printed_under_torchrun(monkeypatch, capsys):
    """One of its ranks starts the worlds of the mistakes, of four ranks each, and prints; the other
    waits.
    """
    file = FOLDER / "data.py"
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    joined = subprocess.run([*torchrun, file], capture_output=True, text=True, timeout=200)
    monkeypatch.setattr(sys, "argv", [file.name])
    runpy.run_path(str(file), run_name="__main__")
    alone = capsys.readouterr().out
    assert alone == joined.stdout, joined.stderr
    assert alone.startswith("the_same_seed: wrong numbers\n  every rank   got 1, should be 4\n")


def test_run_takes_a_file_of_mistakes_by_name():
    assert lesson_files.choose(["mistakes/order", "all_reduce"], False)[0].samefile(
        FOLDER / "order.py"
    )
    assert lesson_files.choose(["mistakes"], False) == PATHS


# The shape of the files, beyond what test_lesson_contract.py says of every lesson.


@lesson
def test_every_mistake_is_followed_by_its_cure_in_a_world_of_the_same_kind(path):
    steps = lesson_files.load(path).STEPS
    for wrong, right in zip(steps[::2], steps[1::2], strict=True):
        assert wrong.world.symptom
        assert not right.world.symptom
        assert (wrong.world.ranks, wrong.world.fresh) == (right.world.ranks, right.world.fresh)


@lesson
def test_each_room_shows_symptom_cause_and_cure_in_this_order(path):
    """A heading and the symptom, the mistake, its run; cause, cure and how to notice it early, the
    cure, its run.
    """
    cells = [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]
    steps = [step.__name__ for step in lesson_files.load(path).STEPS]
    beginnings = (
        r"## .+\n\n\*\*Symptom\.\*\* ",
        r"\*\*Cause\.\*\* .*\n\n\*\*Cure\.\*\* .*\n\n\*\*Early\.\*\* ",
    )
    assert len(cells) == 2 + 3 * len(steps) + 1
    for number, name in enumerate(steps):
        text, function, guard = cells[2 + 3 * number : 5 + 3 * number]
        assert text[0] == "markdown"
        assert re.match(beginnings[number % 2], text[1], re.DOTALL), text[1]
        assert f"def {name}(rank, world_size, device):" in function[1]
        assert "check(" in function[1]
        assert "dist." in function[1]
        assert guard[1] == f'if __name__ == "__main__":\n    run({name})'
