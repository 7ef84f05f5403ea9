"""Every mistake shows its symptom, and its cure shows none."""

import linecache
import runpy
import subprocess
import sys
import time

import pytest
from repository import ROOT

from collectives import Mismatch, check, launch
from collectives.course import chapters, outcome
from collectives.course import files as lesson_files
from collectives.course import mistakes as mistake
from collectives.course.marks import cure
from collectives.course.marks import mistake as mark_mistake
from collectives.course.outcome import RankOutcome
from collectives.course.runner import run_and_print
from collectives.course.show import Display
from collectives.launcher.world import World
from collectives.recording.ending import Ending
from tools import mistakes_table
from tools.docs import SECTIONS

FOLDER = ROOT / "lessons" / "mistakes"
CHAPTER = chapters.read()["mistakes"]
PATHS = lesson_files.of_chapter(CHAPTER)
STEPS = {step.__name__: step for path in PATHS for step in lesson_files.load(path).STEPS}
MISTAKES = [name for name, step in STEPS.items() if step.world.symptom]
CURES = [name for name in STEPS if name not in MISTAKES]
OUTCOMES = mistakes_table.rows(SECTIONS["mistakes"].read())
TABLE = {name: cells for mistakes in OUTCOMES.values() for name, cells in mistakes.items()}
LEVELS = list(mistakes_table.LEVELS.values())

# What else may come, though the runs of the table did not see it.
ALSO = {
    # DETAIL lets the ranks meet before the call, so that nobody is late: then it is a race, which a
    # reader may win.
    ("gradient_in_background", "DETAIL"): {"goes unnoticed"},
    # Rank 0 may lose rank 1 before it can name it.
    ("add_losses_of_batches", "DETAIL"): {"raises an error on rank 1: KeyError: 'loss'"},
    # With DETAIL torch 2.13 dies when it makes a DDP model. Which rank is first is luck.
    **{
        (name, "DETAIL"): {f"dies on rank {rank} (SIGSEGV)" for rank in range(2)}
        for name in ("two_steps_with_ddp", "load_a_checkpoint")
    },
}

# On a busy machine rank 0 may lose ranks that have left before it can name them.
MADE_AGAIN = {"log_the_mean_loss", "end_of_an_epoch", "mean_of_every_metric"}

lesson = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])


# It asks torch. What comes without DETAIL is asked below, of the run that is diagnosed.
@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_what_becomes_of_a_mistake_under_detail_is_what_the_table_says(name):
    allowed = TABLE[name][LEVELS.index("DETAIL")] | ALSO.get((name, "DETAIL"), set())
    times = mistakes_table.TIMES if name in MADE_AGAIN else 1
    outcomes = (mistakes_table.outcome(STEPS[name], "DETAIL") for _ in range(times))
    assert any(outcome in allowed for outcome in outcomes)


def cured(rank, world_size, device, names):
    """Runs in a rank: these cures, one after the other in one world. Returns those without result."""
    return [name for name in names if STEPS[name](rank, world_size, device) is None]


@pytest.mark.parametrize("ranks", sorted({STEPS[name].world.ranks for name in CURES}))
def test_no_cure_shows_a_symptom(ranks):
    names = [name for name in CURES if STEPS[name].world.ranks == ranks]
    together = [name for name in names if not STEPS[name].world.fresh]
    assert launch(cured, ranks, args=(together,), backend="gloo") == [[]] * ranks


@pytest.mark.parametrize("name", [name for name in CURES if STEPS[name].world.fresh])
def test_a_cure_that_makes_its_group_shows_no_symptom(name):
    outcomes, results = mistake.run_isolated(STEPS[name], mistake.own_world(STEPS[name]))
    assert outcomes == [RankOutcome(Ending.RETURNED)] * STEPS[name].world.ranks
    assert None not in results, "a cure returns what it got"


def test_the_table_has_every_mistake_and_no_other():
    assert list(OUTCOMES) == [path.stem for path in PATHS]
    assert list(TABLE) == MISTAKES


def test_the_overview_of_the_page_says_in_short_what_the_page_says_in_full():
    assert SECTIONS["mistakes"].read() == mistakes_table.markdown(OUTCOMES).rstrip()


# Of the mistakes that are in the calls: whom the diagnosis must name, and with which line of the
# program.
GUILTY = {
    "swap": {0: "dist.send(mine, dst=1 - rank)", 1: "dist.send(mine, dst=1 - rank)"},
    "pass_a_token": dict.fromkeys(range(3), "dist.recv(token, src=(rank - 1) % world_size)"),
    "send_activations": {0: "dist.send(x, dst=1, tag=1)", 1: "dist.recv(x, src=0, tag=2)"},
    "log_the_mean_loss": {0: "dist.all_reduce(loss)"},
    "end_of_an_epoch": {2: "dist.all_reduce(gradient)"},
    "loss_and_penalty": {1: "dist.all_reduce(penalty)"},
    "sum_and_rate": {0: "dist.broadcast(rate, src=0)"},
    "two_branches": {0: "dist.all_reduce(x)"},
    "mean_of_every_metric": dict.fromkeys(range(2), "dist.all_reduce(sums[name])"),
    "count_in_the_background": {0: "dist.all_reduce(loss)", 1: "dist.all_reduce(count)"},
    "add_losses": dict.fromkeys(range(2), "dist.all_reduce(losses)"),
    "count_samples": {0: "dist.all_reduce(count)"},
    "share_the_best_model": dict.fromkeys(range(2), "dist.broadcast(model, src=rank)"),
    "sum_over_three_ranks": {
        0: "dist.all_reduce(x, op=dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM)"
    },
    "tokens_for_two_experts": dict.fromkeys(
        range(2),
        "dist.all_to_all_single(received, tokens, output_split_sizes=splits, input_split_sizes=splits)",
    ),
    "rank_without_tokens": {1: "dist.all_reduce(count)"},
    "gather_pieces": dict.fromkeys(range(3), "dist.all_gather(pieces, mine)"),
    "six_numbers": {
        0: "dist.send(torch.arange(6, device=device), dst=1)",
        1: "dist.recv(x, src=0)",
    },
    "mean_after_recv": {0: "dist.send(x, dst=1)", 1: "dist.recv(x, src=0)"},
    "pair_then_everyone": {0: "everyone = dist.new_group()"},
    "created_by_members": dict.fromkeys(
        (1, 2), "pair = dist.new_group([1, 2], use_local_synchronization=True)"
    ),
    "gradients_and_losses": {1: 'dist.all_reduce(gradient, group=groups["gradients"])'},
    "add_losses_of_batches": {1: 'total = torch.tensor([batch["loss"]], device=device)'},
    "sum_of_shards": {2: "sys.exit(0)"},
    "checkpoint_then_sum": {0: "dist.all_reduce(x, group=group)"},
    "train_twice": dict.fromkeys(range(2), 'dist.init_process_group("gloo")'),
    "center_in_the_loader": dict.fromkeys(range(2), "dist.all_reduce(mean)"),
    "validate_between_epochs": {0: "dist.all_gather(losses, loss)"},
    "two_steps_with_ddp": dict.fromkeys(range(2), "model(x).sum().backward()"),
    "load_a_checkpoint": dict.fromkeys(range(2), "loaded.load_state_dict(checkpoint[0])"),
    "save_a_checkpoint": {0: 'check(torch.load(path), weights, "torch.load")'},
    "a_second_job": {0: 'dist.init_process_group("gloo")'},
    "start_on_two_machines": dict.fromkeys(
        (2, 3), 'dist.init_process_group("gloo", rank=me, world_size=world_size)'
    ),
    "all_interfaces_but_two": dict.fromkeys(range(2), 'dist.init_process_group("gloo")'),
    "start_by_hand": dict.fromkeys(range(2), 'dist.init_process_group("gloo")'),
}


# Of those that one rank can see in itself: whom a hint must name, and with which line.
HINTED = {
    "one_tensor_for_every_batch": {0: "work = dist.isend(x, dst=1)"},
    "gradient_in_background": dict.fromkeys(range(2), "dist.all_reduce(gradient, async_op=True)"),
    "sum_a_column": dict.fromkeys(range(2), "dist.all_reduce(table[:, 0])"),
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


@pytest.mark.parametrize(
    ("mark", "printed"),
    [
        (
            mark_mistake("hangs", ranks=1),
            "goes unnoticed\n  every rank   returned\nshould have been: hangs\n",
        ),
        (cure(ranks=1), "raises an error\n  every rank   raised KeyError: 'y'\n"),
    ],
    ids=["a mistake without its symptom", "a cure with a symptom"],
)
def test_what_does_not_show_what_it_should_fails_the_lesson(mark, printed, capsys):
    def quack(rank, world_size, device):
        return {"x": rank}["x" if "goes unnoticed" in printed else "y"]

    assert run_and_print(mark(quack), Display(), World.chosen())[0] == 1
    assert f"quack: {printed}" in capsys.readouterr().err


def test_a_step_without_a_symptom_hangs_after_the_time_limit_that_was_given(capsys):
    @cure(ranks=1)
    def sleep(rank, world_size, device):
        time.sleep(30)

    assert run_and_print(sleep, Display(), World.chosen(timeout=0.5))[0] == 1
    # After a line that the ranks are at work, where their start takes a second.
    assert "sleep: hangs\n  every rank   waited in time.sleep(30)" in capsys.readouterr().err


def test_an_unknown_symptom_is_refused():
    with pytest.raises(
        ValueError,
        match="use one of dies, raises an error, hangs, wrong numbers, breaks off, goes unnoticed",
    ):
        mark_mistake("sulks", ranks=2)


def test_the_number_of_ranks_is_the_mistake_s_own(capsys):
    assert run_and_print(STEPS["sum_over_three_ranks"], Display(), World.chosen(2))[0] == 2
    assert "sum_over_three_ranks is shown with 3 ranks: leave nproc out" in capsys.readouterr().err


# What is printed.

WRONG, PEER_LOST = RankOutcome(Ending.WRONG, "got 1, should be 2"), RankOutcome(Ending.PEER_LOST)
DIED, LEFT = RankOutcome(Ending.DIED, "(SIGABRT)"), RankOutcome(Ending.LEFT, "(exit status 0)")
GONE = "lost its connection to another rank"


@pytest.mark.parametrize(
    ("outcomes", "lines", "summary"),
    [
        (
            [WRONG, PEER_LOST, WRONG],
            [("ranks 0,2", "got 1, should be 2"), ("rank 1", GONE)],
            "wrong numbers on ranks 0,2",
        ),
        (
            [WRONG, DIED],
            [("rank 1", "died (SIGABRT)"), ("rank 0", "ended with it")],
            "dies on rank 1 (SIGABRT)",
        ),
        (
            [PEER_LOST, LEFT],
            [("rank 0", GONE), ("rank 1", "ended (exit status 0)")],
            "breaks off on rank 0",
        ),
        ([LEFT], [("every rank", "ended (exit status 0)")], "goes unnoticed"),
    ],
    ids=["alike", "died", "left", "all left"],
)
def test_ranks_with_the_same_outcome_share_a_line(outcomes, lines, summary):
    assert mistake.grouped(outcomes) == lines
    assert mistake.summary(outcomes) == summary


@pytest.mark.slow  # the lessons are printed under torchrun in test_wheel.py
def test_the_same_is_printed_under_torchrun(monkeypatch, capsys):
    """One of its ranks starts the worlds of the mistakes, of four ranks each, and prints; the other
    waits.
    """
    file = FOLDER / "data.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    joined = subprocess.run([*torchrun, file], capture_output=True, text=True, timeout=200)
    monkeypatch.setattr(sys, "argv", [file.name])
    runpy.run_path(str(file), run_name="__main__")
    alone = capsys.readouterr().out
    assert alone == joined.stdout, joined.stderr
    assert alone.startswith("random_flips: wrong numbers\n  every rank   got 1, should be 4\n")


def test_a_wrong_result_is_told_without_the_name_of_the_call_whatever_that_is():
    with pytest.raises(Mismatch) as caught:
        check([1], [2], "the sum [of two]")
    assert str(outcome._outcome_of(caught.value, launch)) == "got [1], should be [2]"


# The shape of the files, beyond what test_lesson_contract.py says of every lesson.


@lesson
def test_every_mistake_is_followed_by_its_cure_in_a_world_of_the_same_kind(path):
    steps = lesson_files.load(path).STEPS
    for wrong, right in zip(steps[::2], steps[1::2], strict=True):
        assert wrong.world.symptom
        assert not right.world.symptom
        assert (wrong.world.ranks, wrong.world.fresh) == (right.world.ranks, right.world.fresh)


def test_a_step_that_is_interrupted_is_not_recorded_as_hung_later(monkeypatch, tmp_path):
    recorded = []
    monkeypatch.setattr(outcome, "_record", lambda *arguments: recorded.append(arguments))
    with pytest.raises(KeyboardInterrupt), outcome._hang_limit(0.1, tmp_path, 0, 1, __file__):
        raise KeyboardInterrupt
    time.sleep(0.3)
    assert recorded == []
