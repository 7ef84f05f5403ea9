"""Which process failed first, whatever stands before its lines, and whatever follows from it."""

import pytest

from collectives.diagnosis.log.report import report

LOST = (
    "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3803"
)
FAILED = [
    "Traceback (most recent call last):",
    '  File "/srv/train.py", line 12, in <module>',
    "    step(batch)",
    '  File "/opt/lib/python3.11/site-packages/torch/nn/modules/module.py", line 9, in _call',
    "    return forward(*args)",
    "KeyError: 'label'",
]


def said(log, tmp_path, *more):
    paths = [tmp_path / f"{number}.log" for number in range(1 + len(more))]
    for path, text in zip(paths, (log, *more), strict=True):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return report(map(str, paths))[0].replace(f"{tmp_path}/", "")


def prefixed(prefix, lines):
    return "".join(f"{prefix}{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("prefix", "other", "who"),
    [
        ("[rank2]: ", "[rank0]: ", "rank 2"),
        ("[default1]:", "[default0]:", "local rank 1"),
        ("[default1]:[rank5]: ", "[default0]:[rank4]: ", "rank 5"),
        ("[trainer1]:", "[trainer0]:", "local rank 1"),
        ("2: ", "0: [rank0]: ", "rank 2"),
        ("2: ", "1: [rank8]: ", "task 2"),  # Slurm counts machines
        ("[1,2]<stderr>:", "[1,0]<stderr>:", "rank 2"),
        ("(WorkerDict pid=71) ", "(WorkerDict pid=70) ", "WorkerDict pid 71"),
        ("(RayTrainWorker pid=71, ip=10.0.0.2) [rank2]: ", "(RayTrainWorker pid=70) [rank0]: ", "rank 2"),
        ("\x1b[36m(WorkerDict pid=71)\x1b[0m ", "\x1b[36m(WorkerDict pid=70)\x1b[0m ", "WorkerDict pid 71"),
        ("(VllmWorker rank=1 pid=71) ERROR 05-01 10:00:00 [worker.py:70] ", "(VllmWorker rank=0 pid=70) ", "rank 1"),
        ("2026-01-02T03:04:05.678901234Z stderr F [rank2]: ", "2026-01-02T03:04:06.1Z stderr F [rank0]: ", "rank 2"),
        ("2026-01-02T03:04:05.678Z [rank2]: ", "2026-01-02T03:04:06.678Z [rank0]: ", "rank 2"),
        ("trainer-1  | ", "trainer-0  | ", "trainer-1"),
        ("worker-1: [rank2]: ", "worker-0: [rank0]: ", "rank 2"),
        ("[81] [rank2]: ", "[82] [rank0]: ", "rank 2"),
        ("", "", "a process"),
    ],
    ids=["torch", "tee", "both", "role", "slurm", "slurm-machines", "mpirun", "ray", "ray-train", "coloured", "vllm", "kubernetes", "time", "compose", "pdsh", "numbered", "bare"],
)  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_the_first_exception_is_named_whatever_stands_before_its_lines(
    prefix, other, who, end, tmp_path
):
    log = (prefixed(prefix, FAILED) + prefixed(other, [LOST])).replace("\n", end)
    first = said(log, tmp_path).splitlines()[0]
    assert first.startswith(
        f"raised: {who} raised KeyError: 'label' (train.py:12, line 6 of the log)"
    )


def test_two_tracebacks_whose_lines_alternate_are_kept_apart(tmp_path):
    ends = [*FAILED[:-1], LOST]
    log = "".join(f"[rank1]: {a}\n[rank0]: {b}\n" for a, b in zip(FAILED, ends, strict=True))
    assert said(log, tmp_path).startswith(
        "raised: rank 1 raised KeyError: 'label' (train.py:12, line 11 of the log), before rank 0 lost it"
    )


def test_of_two_tracebacks_that_are_mixed_without_labels_no_line_is_claimed(tmp_path):
    log = "".join(f"{a}\n{b}\n" for a, b in zip(FAILED, FAILED, strict=True))
    assert "train.py" not in said(log, tmp_path).splitlines()[0]


CHAINED = [
    *FAILED,
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    "Traceback (most recent call last):",
    '  File "/srv/train.py", line 20, in <module>',
    "    dist.barrier()",
]


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        ([*CHAINED, LOST], "raised: rank 1 raised KeyError: 'label' (train.py:12, line 6 of the log)"),
        ([*CHAINED, "ValueError: bad batch"], "raised: rank 1 raised ValueError: bad batch (train.py:20, line 13 of the log), after KeyError: 'label' (train.py:12)"),
        (["  + Exception Group Traceback (most recent call last):", '  |   File "/srv/train.py", line 3, in main', "  | ExceptionGroup: unhandled errors (1 sub-exception)", "  +-+---------------- 1 ----------------", *(f"    | {line}" for line in FAILED), "    +------------------------------------"], "raised: rank 1 raised KeyError: 'label' (train.py:12, line 10 of the log)"),
        (["Exception ignored in: <function Pool.__del__>", *FAILED[:-1], "OSError: handle is closed", *FAILED], "raised: rank 1 raised KeyError: 'label' (train.py:12, line 13 of the log)"),
        (["UserWarning: Error: nothing", "FutureWarning: old", *FAILED], "raised: rank 1 raised KeyError: 'label'"),
        ([*FAILED[:-1], "AssertionError"], "raised: rank 1 raised AssertionError (train.py:12"),
        ([*FAILED[:-1], "my.package.Broken: no"], "raised: rank 1 raised my.package.Broken: no (train.py:12"),
    ],
    ids=["then-lost", "then-own", "group", "ignored", "warnings", "no-text", "own-class"],
)  # fmt: skip
def test_of_a_chain_the_error_that_is_no_consequence_is_named(lines, first, tmp_path):
    assert said(prefixed("[rank1]: ", lines), tmp_path).startswith(first)


@pytest.mark.parametrize(
    "follows",
    [
        "KeyboardInterrupt",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 9 got signal: 15",
        "subprocess.CalledProcessError: Command '['x']' returned non-zero exit status 1.",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "RuntimeError: [../unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ],
)
def test_what_follows_from_another_process_is_no_cause_even_if_it_comes_first(follows, tmp_path):
    log = prefixed("[rank0]: ", [*FAILED[:-1], follows]) + prefixed("[rank3]: ", FAILED)
    assert said(log, tmp_path).startswith("raised: rank 3 raised KeyError: 'label'")


def test_ctrl_c_alone_tells_where_each_rank_was(tmp_path):
    lines = [*FAILED[:-1], "KeyboardInterrupt"]
    assert said(prefixed("[rank1]: ", lines), tmp_path).startswith(
        "interrupted: somebody pressed Ctrl-C, or sent SIGINT\n  rank 1 was at train.py:12"
    )


def test_an_error_of_the_gpu_comes_before_the_timeouts_of_others(tmp_path):
    log = (
        "[E ProcessGroupNCCL.cpp:916] [Rank 2] NCCL watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\n"
        "[rank0]:[E ProcessGroupNCCL.cpp:563] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"
    )
    assert said(log, tmp_path).startswith(
        "raised: rank 2 raised CUDA error: an illegal memory access was encountered (line 1 of the log), before rank 0 lost it"
    )


FIRST = """Root Cause (first observed failure):
[0]:
  time      : 2024-05-01_09:59:58
  host      : gpu7
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 89)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
"""


def test_ranks_that_all_waited_are_told_with_their_lines_and_none_as_the_first(tmp_path):
    waited = "RuntimeError: Timed out waiting 4000ms for recv operation to complete"
    lines = [*FAILED[:-1], waited]
    elsewhere = [line.replace("line 12", "line 9") for line in lines]
    log = prefixed("[rank0]: ", lines) + prefixed("[rank1]: ", lines)
    assert said(log + prefixed("[rank2]: ", elsewhere) + FIRST, tmp_path).splitlines()[:3] == [
        "hang: each of these ranks waited for another one, until its time limit",
        "  ranks 0,1 at train.py:12",
        "  rank 2 at train.py:9",
    ]


def test_a_traceback_that_is_in_the_log_is_not_said_to_be_missing(tmp_path):
    log = prefixed("[rank0]: ", [*FAILED[:-1], LOST]) + FIRST
    assert said(log, tmp_path).startswith(
        "raised: rank 0 (local rank 0) on gpu7 ended first, by exit code 1, and its error in line 6 "
        "speaks of another rank"
    )


def test_two_causes_are_both_told_the_earlier_one_first(tmp_path):
    log = prefixed("[rank1]: ", FAILED) + prefixed("[rank0]: ", [*FAILED[:-1], "OSError: disk"])
    assert said(log, tmp_path).splitlines()[:2] == [
        "raised: rank 1 raised KeyError: 'label' (train.py:12, line 6 of the log)",
        "  rank 0 raised OSError: disk (train.py:12, line 12)",
    ]


def test_ranks_that_raise_the_same_are_told_together(tmp_path):
    log = "".join(prefixed(f"[rank{rank}]: ", FAILED) for rank in range(3))
    assert said(log, tmp_path).startswith("raised: ranks 0,1,2 raised KeyError: 'label'")


def test_an_error_that_a_rank_survived_is_not_taken_for_the_cause(tmp_path):
    survived = prefixed("[rank0]: ", [*FAILED[:-1], "OSError: try again"])
    log = survived + prefixed("[rank1]: ", FAILED) + prefixed("[rank0]: ", [*FAILED[:-1], LOST])
    text = said(log, tmp_path)
    assert text.startswith("raised: rank 1 raised KeyError: 'label'")
    assert "try again" not in text


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("E api.py:882] failed (exitcode: -7) local_rank: 3 (pid: 104) of binary: /bin/python", "died: local rank 3 by signal 7 (SIGBUS), the first to fail (line 2 of the log)"),
        ("ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -11) local_rank: 0 (pid: 9) of binary: /bin/python", "died: local rank 0 by signal 11 (SIGSEGV), the first to fail (line 2 of the log)"),
        ("[2024-01-02 03:04:05,006] [ERROR] [launch.py:321:sigkill_handler] ['python', '-u', 'm.py', '--local_rank=2'] exits with return code = -9", "died: local rank 2 by signal 9 (SIGKILL) (line 2 of the log)"),
        ("srun: error: gpu7: task 2: Out Of Memory", "died: task 2 on gpu7, Out Of Memory (line 2 of the log)"),
        ("mpirun noticed that process rank 1 with PID 0 on node gpu7 exited on signal 9 (Killed).", "died: rank 1 on gpu7 by signal 9 (SIGKILL) (line 2 of the log)"),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL", "died: process 1 by signal 9 (SIGKILL) (line 2 of the log)"),
        ("[rank: 1] Child process with PID 77 terminated with code -11. Forcefully terminating all other processes", "died: rank 1 by signal 11 (SIGSEGV) (line 2 of the log)"),
        ("kernel: Out of memory: Killed process 4407 (python) total-vm:90kB", "died: process 4407 by signal 9 (SIGKILL) (line 2 of the log)"),
        ("E api.py:882] failed (exitcode: 3) local_rank: 3 (pid: 104) of binary: /bin/python", "raised: local rank 3 ended first, by exit code 3; its traceback is not in this log (line 2)"),
    ],
    ids=["torchrun", "old-torchrun", "deepspeed", "slurm", "mpirun", "spawn", "lightning", "kernel", "exit-code"],
)  # fmt: skip
def test_a_process_that_died_is_named_and_nobody_is_sent_to_a_traceback(line, first, tmp_path):
    text = said(f"[rank9]: {LOST}\n{line}\n", tmp_path)
    assert text.splitlines()[0] == first
    assert "stands above" not in text


def test_torchruns_root_cause_is_believed_before_the_exceptions_of_other_ranks(tmp_path):
    block = [
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2024-05-01_09:59:58",
        "  host      : gpu7",
        "  rank      : 6 (local_rank: 2)",
        "  exitcode  : -9 (pid: 89)",
        "  error_file: <N/A>",
        "  traceback : Signal 9 (SIGKILL) received by PID 89",
        "=" * 60,
    ]
    log = prefixed("[rank0]: ", [*FAILED[:-1], "RuntimeError: my peer is gone"])
    assert said(log + prefixed("", block), tmp_path).splitlines()[:2] == [
        "died: rank 6 (local rank 2) on gpu7 by signal 9 (SIGKILL), the first to fail (line 7 of the log)",
        "  rank 0 raised RuntimeError: my peer is gone (line 6)",
    ]


def test_of_several_logs_the_one_that_does_not_complain_is_named(tmp_path):
    text = said(f"{LOST}\n", tmp_path, f"{LOST}\n", "step 8\nnothing to do\n")
    assert text.startswith(
        "unknown: 2 of 3 logs speak of a rank that was lost or did not come, and this log does not: "
        "look there first\n  2.log ends with: nothing to do"
    )


def test_of_several_logs_the_times_tell_which_error_was_first(tmp_path):
    late, early = (f"2026-01-02T03:04:0{n}.5Z " for n in (9, 1))
    other = prefixed(late, [*FAILED[:-1], "OSError: disk"])
    text = said(other, tmp_path, prefixed(early, FAILED))
    assert text.startswith("raised: the process of 1.log raised KeyError")
    text = said(prefixed("", [*FAILED[:-1], "OSError: disk"]), tmp_path, prefixed("", FAILED))
    assert "the logs do not tell which of these was first" in text


def test_an_exception_after_the_watchdogs_lines_is_no_cause(tmp_path):
    timeout = "[rank0]:[E ProcessGroupNCCL.cpp:563] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600000 milliseconds before timing out.\n"
    assert said(prefixed("[rank1]: ", FAILED) + timeout, tmp_path).startswith("raised: rank 1")
    text = said(timeout + prefixed("[rank1]: ", FAILED), tmp_path)
    assert text.startswith("timeout: rank 0 waited too long")
    assert "after that, rank 1 raised KeyError: 'label' (line 7)" in text


@pytest.mark.parametrize(
    ("begin", "why"),
    [
        (b"", "0.log is empty."),
        (
            b"\x1f\x8b\x08\x00\x01",
            "0.log is compressed: `zcat FILE | collectives diagnose --log -`",
        ),
        (b"\x7fELF\x02\x01\x01\x00\x00\x00\x00", "0.log is no text."),
        ("Error".encode("utf-16"), "0.log is UTF-16"),
    ],
    ids=["empty", "gzip", "binary", "utf-16"],
)
def test_what_is_no_log_gets_a_sentence(begin, why, tmp_path):
    assert why in said(begin, tmp_path)


WHOLE = (prefixed("[rank1]: ", CHAINED) + prefixed("[rank0]: ", [LOST])).encode()


def test_a_log_that_is_cut_anywhere_accuses_nobody_else(tmp_path):
    for at in range(0, len(WHOLE), 7):
        begin, end = said(WHOLE[:at], tmp_path), said(WHOLE[at:], tmp_path)
        assert begin.startswith(("raised: rank 1 raised KeyError", "0.log: no traceback")), begin
        assert "rank 0 raised" not in end, end
