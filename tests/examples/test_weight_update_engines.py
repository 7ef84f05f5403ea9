"""The programs of examples/weight_update_engines: a trainer that speaks SGLang's and vLLM's HTTP,
and an engine that is played, right or with one of the faults that it knows.
"""

import contextlib
import dataclasses
import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import psutil
import pytest
from machines import needs_a_lab
from played_engines import FOLDER, ROOT, engine, faults, lacks, met, module, trained
from processes import children, finished, started, wait_until

from benchmarks import engine_faults
from collectives import Lab
from tools.engine_protocols import in_order

MEASURED = json.loads((ROOT / "docs" / "engine_faults.json").read_text("utf-8"))
PROTOCOLS = ["sglang", "vllm"]


@pytest.fixture(scope="module", params=PROTOCOLS)
def protocol(request):
    return request.param


@pytest.fixture(scope="module")
def healthy(protocol):
    with engine(protocol) as found:
        yield found


def test_the_programs_have_no_line_of_this_package():
    assert not any("collectives" in file.read_text("utf-8") for file in FOLDER.glob("*.py"))


def test_a_session_of_updates_in_two_buckets(protocol):
    with engine(protocol, tp=2) as one:
        status, last, lines = trained(protocol, [one], "--bucket-mib", 0.1)
    assert (status, last) == (0, {"version": 3, "held_by": [one], "named": []}), lines


@pytest.mark.slow
def test_twenty_healthy_updates_name_nothing(protocol, healthy):
    with engine(protocol, tp=2) as other:
        status, last, lines = trained(protocol, [healthy, other], "--updates", 20)
    assert (status, last["named"], last["held_by"]) == (0, [], [healthy, other]), lines


@pytest.mark.slow
def test_sglang_before_it_had_sessions():
    with engine("sglang-0.5.20", tp=2) as one:
        status, last, lines = trained("sglang-0.5.20", [one])
    assert (status, last["named"], last["held_by"]) == (0, [], [one]), lines


def checksums(address):
    """Of each rank, as SGLang's server tells them to anybody."""
    with urllib.request.urlopen(f"{address}/weights_checker", b"{}", timeout=30) as answer:
        return [rank["checksums"] for rank in json.load(answer)["ranks"]]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (1, 2, 1, 2)], ids=str)
@pytest.mark.parametrize("colocated", [(), ("--colocated",)], ids=["broadcast", "colocated"])
def test_all_engines_have_equal_weights_whatever_their_ranks(sizes, colocated):
    with contextlib.ExitStack() as stack:
        engines = [
            stack.enter_context(engine("sglang", tp=tp, seed=seed)) for seed, tp in enumerate(sizes)
        ]
        status, last, lines = trained("sglang", engines, "--bucket-mib", 0.05, *colocated)
        found = [checksums(one) for one in engines]
    assert (status, last["held_by"]) == (0, engines), lines
    for tp in set(sizes):
        alike = [one for size, one in zip(sizes, found, strict=True) if size == tp]
        assert [len(one) for one in alike] == [tp] * len(alike)
        assert all(one == alike[0] for one in alike)
    whole = {"embed.weight", "head.weight", "norm.weight", "norm.bias"}
    assert len({tuple(rank[name] for name in sorted(whole)) for one in found for rank in one}) == 1


@pytest.mark.slow
def test_colocated_engines_of_vllm(healthy, protocol):
    status, last, lines = trained(protocol, [healthy], "--colocated", "--bucket-mib", 0.05)
    assert (status, last["held_by"]) == (0, [healthy]), lines


WIDTH = 64
MATRICES = 4 * WIDTH * WIDTH + 2 * 4 * WIDTH * WIDTH  # attention, and the MLP
BYTES = 2 * WIDTH * 4 + 2 * (48 * WIDTH + MATRICES + 4 * WIDTH)  # norms in float32


def test_the_picture_has_the_bytes_of_the_model_between_a_request_and_its_answer():
    """In two buckets: the second one begins where the first has more than 0.05 MiB."""
    before = 2 * WIDTH * 4 + 2 * (48 * WIDTH + 4 * WIDTH * WIDTH)
    first = before + 2 * 4 * WIDTH * WIDTH
    assert before < 0.05 * 2**20 < first
    for events in MEASURED["calls"].values():
        sent = [one["bytes"] for one in events if one["lane"] == "broadcast"]
        assert sent == [first, BYTES - first]
        assert engine_faults.is_in_time(events)


def test_a_machine_that_is_too_busy_for_a_picture_is_no_error(monkeypatch):
    late = [{"lane": "broadcast", "began": 0, "ended": 1, "bytes": 1}]
    monkeypatch.setattr(engine_faults, "calls", lambda protocol: late)
    assert engine_faults.picture("sglang") is None


@needs_a_lab
@pytest.mark.slow
def test_two_machines_and_the_bytes_between_them():
    """Both ranks of the engine get every byte of three versions: counted at the interface."""
    width = 512
    size = 2 * width * 4 + 2 * (48 * width + 12 * width * width + 4 * width)
    play = f"python {FOLDER}/stub_engine.py --tp 2 --host 0.0.0.0 --port 30000 --width {width}"
    sent = "awk '/eth0:/ {print $10}' /proc/net/dev"
    train = f"python {FOLDER}/trainer.py --host node0 --engine http://node1:30000 --width {width}"
    with Lab(2) as lab:
        with lab.start(1, ["sh", "-c", f"exec {play}"], stdout=subprocess.PIPE) as stub:
            assert stub.stdout.readline()
            (trainer,) = lab.run(["sh", "-c", f"{sent}; {train} && {sent}"], on=[0])
            stub.terminate()
    assert trainer.returncode == 0, trainer.stdout + trainer.stderr
    before, *_, last, after = trainer.stdout.splitlines()
    assert json.loads(last)["held_by"] == ["http://node1:30000"]
    assert 1 <= (int(after) - int(before)) / (3 * 2 * size) < 1.03


@pytest.mark.slow
def test_trainers_of_torchrun():
    with engine("sglang", tp=2) as one:
        torchrun = "torchrun --standalone --nproc-per-node 2"
        done = finished(f"{torchrun} {FOLDER}/trainer.py --engine {one}")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last == {"version": 3, "held_by": [one], "named": []}


@pytest.mark.slow
def test_a_trainer_after_one_that_was_killed(protocol):
    """The engine is paused, a session is open, and SGLang's old group still has the name."""
    with engine(protocol, tp=2) as one:
        command = f"python {FOLDER}/trainer.py --protocol {protocol} --engine {one}"
        with started(f"{command} --updates 1000000", FOLDER) as killed:
            # The pipe ends with the trainer, so this does not wait for one that has died.
            assert any(line.startswith("version 2") for line in killed.stdout)
            killed.kill()
        status, last, lines = trained(protocol, [one])
    assert last["held_by"] == [one], lines
    assert status == (1 if protocol == "sglang" else 0)


OTHERWISE = "it has the weights, and answers otherwise than the trainer's model"
OLD_KEYS = "it has the weights, and answers with keys and values of old weights"
FOREIGN = {
    "one_rank_keeps_its_weights": "its rank 1 holds other weights",
    "hashes_what_came": OTHERWISE,
    "decodes_from_a_graph": OTHERWISE,
    "two_replicas": "it has the weights, and answers ",
    "two_tiers": OLD_KEYS,
    "wakes_up_as_it_was": "its weights are no longer those of the last update",
    "keeps_its_label": "it calls its weights version default, and they are version 1",
    "goes_on_at_the_end": "it answered while it was paused",
}
OF_SGLANG = {
    "says_false_with_200": "/begin_weight_update answered 200, and {'success': False",
    "forgets_who_waits": "no answer to /generate within",
    "reads_prompts_at_once": "it has the weights, and answers what it was asked during the pause",
}


@pytest.mark.slow
def test_faults_that_nobody_has_foreseen_are_named(protocol, healthy, tmp_path):
    """All of them in one update: an engine has one each."""
    copy = shutil.copytree(FOLDER, tmp_path / "copy")
    with (copy / "faults.py").open("a", encoding="utf-8") as file:
        file.write(Path(__file__).with_name("foreign_faults.py").read_text("utf-8"))
    says = FOREIGN | (OF_SGLANG if protocol == "sglang" else {})
    with contextlib.ExitStack() as stack:
        names = {
            stack.enter_context(engine(protocol, folder=copy, tp=2, fault=fault)): fault
            for fault in says
        }
        status, last, lines = trained(protocol, [healthy, *names], "--updates", 2)
    found = {}
    for one in last["named"]:
        found.setdefault(names[one["where"]], one["what"])
    assert status == 1
    assert {name: found.get(name, "")[: len(says[name])] for name in says} == says, lines
    assert healthy in last["held_by"]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [*PROTOCOLS, "sglang-0.5.20"], indirect=True)
@pytest.mark.parametrize("fault", faults())
def test_a_fault_is_named_as_the_page_says(fault, protocol, healthy):
    """SGLang without sessions shows the same as SGLang with them."""
    measured = dict(MEASURED[protocol.partition("-")[0]][fault])
    if lacks(fault, protocol):
        assert measured["lacks"] == lacks(fault, protocol)
        return
    found = met(fault, protocol, healthy)
    del found["seconds"], measured["seconds"]  # another run takes others
    assert measured.pop("does") == faults()[fault]
    assert (found, found["status"]) == (measured, 1)


@pytest.mark.slow
def test_no_process_is_left_when_a_server_is_killed(protocol):
    before = children()
    with engine(protocol, tp=2):
        ranks = [one for one in children() - before if len(one.children()) == 0]
        servers = {one.parent() for one in ranks if one.parent() not in (None, psutil.Process())}
        server = next(one for one in servers if len(one.children()) == 2)
        ranks = server.children()
        server.kill()
        wait_until(lambda: not any(one.is_running() for one in ranks), 30)


def test_the_help_lists_the_faults():
    assert len(faults()) == 15
    listed = re.findall(
        r"^def (\w+)\((?:rank|server)\):", (FOLDER / "faults.py").read_text("utf-8"), re.M
    )
    assert {*faults(), "none"} == set(listed)
    assert module("faults").none.__doc__ == "a healthy engine"
    said = finished(f"python {FOLDER}/stub_engine.py --help", cwd=FOLDER).stdout
    assert [name for name in listed if name not in said] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--updates 0", "without one, nothing is compared"),
        ("--protocol vllm --backend nccl", "install vLLM here"),
    ],
)
def test_bad_usage_is_told_before_any_engine_is_asked(words, says):
    done = finished(f"python {FOLDER}/trainer.py --engine http://127.0.0.1:9 {words}", cwd=FOLDER)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_an_engine_that_holds_the_weights_already_has_taken_them(protocol):
    """As that of a trainer that was started again."""
    with engine(protocol) as one:
        for _ in range(2):
            status, last, lines = trained(protocol, [one], "--updates", 1)
            assert (status, last["named"], last["held_by"]) == (0, [], [one]), lines


# The words of the protocols, as a tool has read them in the wheels.

WHEELS = json.loads((ROOT / "tests" / "examples" / "engine_protocols.json").read_text("utf-8"))
PARTS = {"Generate", "Completion"}  # of these we have the fields that we use
VERSIONS = {"SGLang 0.5.20", "SGLang 0.5.23", "vLLM 0.33.0"}


def ours(kind) -> dict[str, list[str]]:
    """As the tool writes fields."""
    found = {}
    for one in dataclasses.fields(kind):
        default = repr(one.default)
        if one.default is dataclasses.MISSING:
            factory = one.default_factory
            default = "required" if factory is dataclasses.MISSING else f"{factory.__name__}()"
        text = one.type if isinstance(one.type, str) else getattr(one.type, "__name__", "")
        if not isinstance(one.type, type) or "[" in str(one.type):
            text = str(one.type).replace("typing.", "")
        found[one.name] = [in_order(text), default]
    return found


def test_the_requests_have_the_fields_of_the_wheels():
    kinds = [one for one in vars(module("protocols")).values() if dataclasses.is_dataclass(one)]
    compared = 0
    for kind in kinds:
        engine_name, theirs = re.search(r"(SGLang|vLLM)'s (\w+)", kind.__doc__).groups()
        for version in [one for one in WHEELS if one.startswith(engine_name)]:
            if theirs not in WHEELS[version]:
                assert (version, "404 before" in kind.__doc__) == ("SGLang 0.5.20", True)
                continue
            right, found = WHEELS[version][theirs], ours(kind)
            for one in dataclasses.fields(kind):
                if one.metadata.get("lacking in") == version:
                    del found[one.name]
            if kind.__name__ in PARTS:
                right = {name: right[name] for name in found}
            right = {name: one for name, one in right.items() if name != "disable_draft_model"}
            assert found == right, (kind, version)
            compared += 1
    assert compared == 2 * 9 + 2 + 11, compared
    assert set(WHEELS) == VERSIONS


def test_every_route_is_one_of_the_wheels():
    protocols = module("protocols")
    known = {route for version in WHEELS.values() for route in version["routes"]}
    kinds = vars(protocols).values()
    asked = [one.ROUTE for one in kinds if hasattr(one, "ROUTE")]
    asked += [
        one for one in kinds if isinstance(one, str) and one.startswith("/") and one.count("/") == 1
    ]
    assert len(asked) == 24
    assert set(asked) <= known
    assert "/begin_weight_update" not in WHEELS["SGLang 0.5.20"]["routes"]
