"""The messages of messages.toml are those that really come, and `diagnose --log` finds them."""

import pickle
import re
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hand_made import record
from processes import finished
from torch._C._distributed_c10d import _dump_fr_trace

from collectives import launch
from collectives.cli import app
from collectives.course import mistakes
from collectives.course.marks import mistake
from collectives.diagnosis.log import lines, messages
from collectives.diagnosis.log.report import report
from collectives.recording.lost_peer import is_lost

TABLE = {message.name: message for message in messages.table()}

# The programs that take more than 3 seconds: those of torchrun import torch anew, and DDP imports
# torch's compiler.
SLOW = [one.name for one in TABLE.values() if one.torchrun or "DistributedData" in one.program]


def run(message, folder):
    """What the program writes into a log."""
    if message.torchrun:
        path = folder / "program.py"
        path.write_text(message.program)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
        done = finished([*torchrun, str(message.ranks), path], env=message.env)
        return done.stdout + done.stderr
    says = step(message)
    outcomes, _ = mistakes.run_isolated(says, mistakes.own_world(says))
    return "\n".join(outcome.text for outcome in outcomes)


def step(message):
    code = compile(message.program, "program.py", "exec")

    def small(rank, world_size, device):
        exec(code, {"__name__": "__main__"})

    def with_ddp(rank, world_size, device):
        from torch.nn.parallel import DistributedDataParallel  # noqa: F401

        small(rank, world_size, device)

    chosen = with_ddp if "DistributedDataParallel" in message.program else small
    return mistake("raises an error", ranks=message.ranks, fresh=True)(chosen)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.name in SLOW else [])
        for one in TABLE.values()
        if one.program
    ],
)
def test_the_program_produces_its_message(message, tmp_path, monkeypatch):
    for name, value in message.env.items():
        monkeypatch.setenv(name, value)
    # On a busy machine a rank may be too late for the others, which is another error.
    texts = []
    while len(texts) < 3 and not message.search("".join(texts)):
        texts.append(run(message, tmp_path))
    assert message.patterns[0].search(texts[-1]), texts[-1]


@pytest.mark.parametrize(
    "message",
    [one for one in TABLE.values() if re.fullmatch(r"torch/.*\.py", one.source)],
    ids=lambda one: one.name,
)
def test_a_message_of_torchs_python_code_stands_there(message):
    source = Path(torch.__file__).parents[1] / message.source
    assert message.search(source.read_text(encoding="utf-8"))


CLOSED = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:45289. GLHF!"
GROUP = "PG ID 0 PG GUID 0(default_pg)"


def timed_out(rank, seq, enqueued, op="ALLREDUCE", group=GROUP):
    """What NCCL's watchdog writes, from the format strings of ProcessGroupNCCL.cpp."""
    who = f"[rank{rank}]:[E709 17:05:38.162555850 ProcessGroupNCCL.cpp:632]"
    return (
        f"{who} [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, "
        "NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600000 milliseconds before timing out.\n"
        f"{who} [{group} Rank {rank}]  failure detected by watchdog at work sequence id: {seq} "
        f"PG status: last enqueued work: {enqueued}, last completed work: {seq - 1}\n"
    )


def dump_signal(rank, enqueued):
    return (
        f"[rank{rank}]:[E709 17:05:38 ProcessGroupNCCL.cpp:1746] [{GROUP} Rank {rank}] Received a dump signal due to a "
        "collective timeout from  rank 0 and we will try our best to dump the debug info. "
        f"Last enqueued NCCL work: {enqueued}, last completed NCCL work: {enqueued}.This is most likely caused by\n"
    )


def of_the_watchdog_alone(rank, seq, sizes=""):
    """What is left if somebody keeps the lines with "Watchdog"; torch 2.0 wrote no sizes."""
    return (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=BROADCAST, {sizes}"
        "Timeout(ms)=600000) ran for 600096 milliseconds before timing out.\n"
    )


def explained(text: str, folder) -> str:
    path = folder / "job.log"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    text, is_well = report([str(path)])
    assert not is_well
    return text


def first_line(text, folder):
    return explained(text, folder).splitlines()[0]


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (f"[rank3]: {CLOSED}", "line 3; rank 3"),
        (f"[default1]:[rank3]: {CLOSED}", "line 3; rank 3"),
        (f"[default1]:{CLOSED}", "line 3; local rank 1"),
        (f"(WorkerDict pid=7) \x1b[31m[ra\x1b[0mnk3]: {CLOSED.replace('closed', chr(27) + '[1mclosed')}", "line 3; rank 3"),
        (f"[rank0]: 10%|#  | 3/9\r[rank3]: {CLOSED}", "line 3; rank 3"),
        (f"[rank3]: {CLOSED}\n[rank1]: {CLOSED}", "2 lines, the first is line 3; ranks 1,3"),
        (CLOSED, "line 3"),
        ("\r" * 300_000 + f"[rank3]: {CLOSED}", "line 3; rank 3"),
    ],
    ids=["rank", "both", "local", "coloured", "progress-bar", "twice", "nobody", "long-line"],
)  # fmt: skip
def test_a_message_is_found_with_who_wrote_it(line, where, tmp_path):
    text = explained(f"step 1\nstep 2\n{line}\nstep 3", tmp_path)
    assert text.splitlines()[:2] == ['"Connection closed by peer ["', f"  {where}"], text


def test_a_line_at_the_border_of_two_chunks_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "_CHUNK", 40)
    assert "2 lines, the first is line 3" in explained(f"a\nb\n{CLOSED}\n{CLOSED}\n", tmp_path)


def test_a_log_that_is_cut_and_is_no_text_is_read(tmp_path):
    log = b"\xff\x00\x1b[" + CLOSED.encode() + b"\n[rank1]: " + CLOSED.encode()[:30]
    assert "line 1" in explained(log, tmp_path)


def test_the_logs_of_all_ranks_are_read_as_one_job(tmp_path):
    texts = ["step 1\n", f"{CLOSED}\n" + timed_out(0, 7, 9), timed_out(1, 7, 7), dump_signal(2, 6)]
    paths = [tmp_path / f"{number}.log" for number in range(4)]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    text, _ = report(map(str, paths))
    assert text.startswith("hang: rank 2 never joined ALLREDUCE #7")
    assert f'closed by peer ["\n  line 1 of {paths[1]}\n' in text
    assert text.index("Connection closed") < text.index('"Watchdog caught')
    assert f"3 lines, the first is line 3 of {paths[1]}; ranks 0,1,2" in text


def test_logs_without_a_known_message_are_named(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.log", "b.log")]
    for path in paths:
        Path(path).write_text("step 1: loss 0.7\n")
    nothing = "no traceback is there, and no message that docs/messages.md explains."
    assert report(paths) == (f"{paths[0]}, {paths[1]}: {nothing}", False)


@pytest.mark.parametrize(
    ("log", "verdict"),
    [
        (timed_out(0, 7, 9) + timed_out(1, 7, 7) + dump_signal(2, 6), f"hang: rank 2 never joined ALLREDUCE #7 of group {GROUP[-13:]}"),
        (timed_out(0, 7, 7) + timed_out(1, 7, 7, "BROADCAST") + timed_out(2, 7, 7), f"mismatch: different calls as #7 of group {GROUP[-13:]}: rank 1 against ranks 0,2"),
        (timed_out(0, 7, 7) + timed_out(1, 7, 7), f"timeout: ranks 0,1 joined ALLREDUCE #7 of group {GROUP[-13:]}, and it did not end"),
        # A sum needs all ranks: who is done with it made another call than who waits in it.
        (timed_out(0, 9, 9) + timed_out(1, 7, 7), f"mismatch: different calls at or before #7 of group {GROUP[-13:]}: rank 0 has completed #8, and rank 1 waits in ALLREDUCE #7 of group {GROUP[-13:]}"),
        # The root of a broadcast needs nobody.
        (timed_out(0, 9, 9) + timed_out(1, 7, 7, "BROADCAST"), f"timeout: rank 0 has completed #8, and rank 1 waits in BROADCAST #7 of group {GROUP[-13:]}"),
        # As several groups of torch 2.4 have one name, if each process counts its own.
        (timed_out(0, 7, 7, group="PG 1") + timed_out(4, 7, 9, group="PG 1").replace("PG 1 Rank 4", "PG 1 Rank 0"), "timeout: ranks 0,4 waited too long in the same call"),
        (timed_out(0, 7, 7, group="PG ID 1 PG GUID 9(TENSOR_MODEL_PARALLEL_GROUP)") + timed_out(1, 6, 6, group="PG ID 1 PG GUID 9(TENSOR_MODEL_PARALLEL_GROUP)"), "mismatch: different calls at or before #6 of group 9(TENSOR_MODEL_PARALLEL_GROUP): rank 0 has completed #6, and rank 1 waits in ALLREDUCE #6 of group 9(TENSOR_MODEL_PARALLEL_GROUP)"),
        # torch 2.14 tells one more number.
        (timed_out(0, 7, 9).replace(", last completed", ", last started work: 7, last completed") + dump_signal(1, 6), f"hang: rank 1 never joined ALLREDUCE #7 of group {GROUP[-13:]}"),
        (timed_out(0, 7, 7, group="PG 3") + timed_out(1, 6, 6, group="PG 4"), "timeout: rank 0 joined ALLREDUCE #7 of group 3, and it did not end"),
    ],
    ids=["absent", "mismatch", "all", "out-of-step", "root", "one-name", "named", "started", "two-groups"],
)  # fmt: skip
def test_the_watchdogs_lines_name_who_did_not_join(log, verdict, tmp_path):
    assert first_line(log, tmp_path) == verdict


def test_the_watchdogs_calls_alone_say_who_waited(tmp_path):
    sizes, alone = "NumelIn=80, NumelOut=80", of_the_watchdog_alone
    log = alone(3, 78, f"{sizes}, ") + alone(1, 78) + alone(1, 79)
    assert explained(log, tmp_path).startswith(
        "timeout: ranks 1,3 waited too long in the same call\n"
        "  rank  1  in BROADCAST #78\n"
        f"  rank  3  in BROADCAST({sizes}) #78\n"
        "  ranks 0,2 did not write that: look there first\n"
    )


def test_ranks_that_wrote_nothing_are_named(tmp_path):
    assert "rank 1 wrote nothing" in explained(timed_out(0, 7, 7) + timed_out(2, 7, 7), tmp_path)


def dump_of(joined: int, seq: int = 3, **changed) -> dict:
    """A dump as torch 2.13 writes it on gloo: so many calls have been made, and the last waits."""
    records = [
        record(number, number + 1, **({"retired": number < seq} | changed))
        for number in range(joined)
    ]
    groups = {"": {"name": "", "desc": "", "ranks": "[0, 1, 2]"}}
    return {"version": "2.10", "pg_config": groups, "entries": records}


def dumped(folder, *dumps):
    for rank, dump in enumerate(dumps):
        content = dump if isinstance(dump, bytes) else pickle.dumps(dump, protocol=2)
        (folder / f"trace_rank_{rank}").write_bytes(content)
    return report([str(folder / "trace_rank_")])


@pytest.mark.parametrize(
    ("dumps", "verdict"),
    [
        ((dump_of(4), dump_of(4), dump_of(3)), "slow: rank 2 has not joined all_reduce #4 of group WORLD"),
        ((dump_of(4), dump_of(4), dump_of(4, input_sizes=[[5]])), "mismatch: shape of all_reduce #1 of group WORLD: rank 2 against ranks 0,1"),
        ((dump_of(3), dump_of(3), dump_of(3)), "ok: the collectives of ranks 0,1,2 fit together, and none is under way"),
    ],
    ids=["absent", "mismatch", "ok"],
)  # fmt: skip
def test_dumps_are_judged_by_the_rules_of_the_diagnosis(dumps, verdict, tmp_path):
    text, is_well = dumped(tmp_path, *dumps)
    assert text.splitlines()[0] == verdict
    assert is_well == verdict.startswith("ok")


def dump_while_one_waits(rank, world_size, device):
    x = torch.ones(4)
    dist.all_reduce(x)
    work = dist.all_reduce(x, async_op=True) if rank == 0 else None
    # torch notes a moment later that the first call is over.
    while not pickle.loads(dump := _dump_fr_trace())["entries"][0]["retired"]:
        time.sleep(0.01)
    if rank == 0:
        dist.send(x, dst=1)
        work.wait()
    else:
        dist.recv(torch.ones(4), src=0)
        dist.all_reduce(x)
    return dump


def test_dumps_that_torch_writes_are_judged(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2000")  # torch 2.9 keeps no record without it
    text, _ = dumped(tmp_path, *launch(dump_while_one_waits, 2))
    headline, rank_0, *_ = text.splitlines()
    assert headline == "slow: rank 1 has not joined all_reduce #2 of group WORLD"
    assert rank_0.startswith("  rank  0  in all_reduce(float32[4])")


@pytest.mark.parametrize(
    ("joined", "says"),
    [
        (4, "hang: ranks 0,1 wait in all_reduce #4 of group WORLD, and nothing moves\n  ranks 0,1  in all_reduce(float32[4])  train.py:9 in step\n  rank  2    no dump of it"),
        (3, "partial: the collectives of ranks 0,1 fit together, and none is under way; there is no dump of rank 2"),
    ],
    ids=["waiting", "ended"],
)  # fmt: skip
def test_a_rank_without_a_dump_is_told(joined, says, tmp_path):
    assert dumped(tmp_path, dump_of(joined), dump_of(joined)) == (says, False)


class Evil:
    def __reduce__(self):
        return eval, ("crash",)


NESTED: list = []
for _ in range(40):
    NESTED = [NESTED, NESTED]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (Evil(), "KeyError"),
        ({**dump_of(1), "more": Evil()}, "KeyError"),
        (b"\x80\x02r\xff\xff\xff\xff.", "IndexError"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", "KeyError"),
        (b"\x80\x02X\xff\xff\xff\x7fabc", "EOFError|UnpicklingError|IndexError"),
        (dump_of(1, input_sizes=[[NESTED]]), "TypeError"),
        (dump_of(1, input_dtypes=[NESTED]), "TypeError"),
        ({"entries": []}, "KeyError"),
        ([1], "TypeError"),
        (b"\x80\x02}" + b"\x00" * (2**25), "larger than 32 MiB"),
    ],
    ids=["function", "inside", "memo", "length", "cut", "nested", "text", "parts", "list", "large"],
)
def test_a_crafted_dump_is_refused_and_runs_nothing(content, why, tmp_path):
    with pytest.raises(ValueError, match=f"trace_rank_0 is .*({why})"):
        dumped(tmp_path, content)


def test_control_characters_of_a_dump_do_not_reach_the_terminal(tmp_path, capsys):
    (tmp_path / "dump_0").write_bytes(pickle.dumps(dump_of(4, profiling_name="x:\x1b[31m"), 2))
    with pytest.raises(SystemExit, match="1"):
        app(["diagnose", "--log", str(tmp_path / "dump_0")])
    assert r"\x1b[31m" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--log", "no.log"], "no.log cannot be read: No such file or directory."),
        (["--log", "/"], "/ cannot be read: Is a directory."),
        ([], "name a command, as in -- torchrun train.py, or --log FILE."),
        (["--timeout", "5"], "name a command"),
        (
            ["--log", "x", "--json", "y"],
            "--log runs nothing: --timeout and --json go with a command.",
        ),
    ],
    ids=["missing", "folder", "nothing", "no-command", "json"],
)
def test_bad_usage_is_status_2(words, says, capsys):
    with pytest.raises(SystemExit) as ended:
        app(["diagnose", *words])
    assert ended.value.code == 2
    if words:
        assert says in capsys.readouterr().err


# Texts of logs that no exception of a rank holds, and errors that say of themselves who is missing.
NO_EXCEPTION = {"watchdog-status", "heartbeat", "taken-down"}
CAUSES = {"monitored-barrier", "spawn-signal"}
SEEN_BY_RANKS = "gloo", "nccl"  # others are written by launchers and agents


RAISED_BY_RANKS = [
    message
    for message in messages.table()
    if message.name not in NO_EXCEPTION | CAUSES
    and (
        message.kind == "cause" or (message.kind == "consequence" and message.seen in SEEN_BY_RANKS)
    )
]


@pytest.mark.parametrize("message", RAISED_BY_RANKS, ids=lambda message: message.name)
def test_a_live_rank_and_its_log_agree_that_another_rank_is_gone(message):
    """What a log calls a consequence is one for the running diagnosis, too; a cause is none."""
    is_one = message.kind == "consequence"
    assert [text for text in message.wordings if is_lost(text) != is_one] == []
