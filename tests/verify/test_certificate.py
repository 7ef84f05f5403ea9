"""A certificate says what is wrong with a backend, once for each cause, and nothing of one without."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from repository import SUPPORT
from typer.testing import CliRunner

from collectives.backends import availability, claims
from collectives.cli import app
from collectives.verify import asking, certificate, program, stated, worlds
from collectives.verify.causes import causes_of
from collectives.verify.plan import Plan
from collectives.verify.question import NOT_ASKED, STATED, Answer, Question

# A backend with one fault, the questions that it touches, and what the only cause must say.
FAULTS = {
    "says_0_of_1": ("calls", "barrier", "The group is not what torch has passed to it: rank "),
    "loses_past_65536": ("sizes", "all_gather", "wrong from 65,537 elements on"),
    "int64_in_float32": ("widths", "all_reduce", "that is as exact as float32"),
}
SLOW = {
    "swallows": ("failure", "all_gather_single", "returned without an error"),
    "ends_early": ("at once", "all_reduce", "is_completed() is True before rank 1 has made"),
    "shares_a_buffer": ("at once", "all_reduce", "in flight"),
    "keeps_descriptors": ("at once", "new_group", "descriptors grew from"),
    "ignores_the_limit": ("failure", "all_gather", "still waits after 10 s; the group's limit is"),
    "never_leaves": ("calls", "broadcast", "destroy_process_group: hangs"),
    "waits_for_messages": ("at once", "isend, irecv", "all_reduce after irecv"),
    "root_in_the_world": ("groups", "broadcast", "root 3"),
    "copies_an_input_once": ("at once", "all_gather", "call 2 of 1,000"),
    "keeps_inputs": ("at once", "all_reduce", "from call 500 to call 1,000, memory grew by"),
    "leaves_a_tail": ("sizes", "reduce_scatter_single", "wrong from 1 elements on"),
    "compares_bytes_with_a_sign": ("widths", "all_reduce", "wrong with uint8, with MAX, MIN"),
    "maximum_from_0": ("calls", "all_reduce", "with MAX, on 2, 3 ranks"),
    "ignores_splits": ("calls", "all_to_all_single", "with tensors of several lengths"),
}


@pytest.fixture(autouse=True)
def import_faulty(monkeypatch):
    monkeypatch.syspath_prepend(str(SUPPORT))
    monkeypatch.setattr(availability, "imported", [])
    availability.import_modules(["faulty_backends"])


def asked(backend, section, call):
    """Only float32 and int64 where there is a choice: what gloo itself does wrong is left out."""

    def keep(question):
        traits = dict(question.traits)
        if question.section != section or question.call != call:
            return question.section == "group"
        if traits.get("variant") in ("noncontiguous", "lazy", "scalar"):
            return False
        return traits.get("dtype") in (None, "float32", "int64", "uint8")

    plan = Plan(backend, world_sizes=(2,), lesson_sizes=())
    return plan, asking.ask(plan, lambda *_: None, keep)


@pytest.mark.parametrize(
    "backend", [*FAULTS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_a_fault_is_told_once_and_by_its_name(backend):
    section, call, text = (FAULTS | SLOW)[backend]
    plan, answers = asked(backend, section, call)
    found = certificate.Certificate(plan, answers, 1.0)
    assert found.status == 1, [answer for answer in answers if answer.state != "works"]
    assert len(found.causes) == 1, [*map(str, found.causes)]
    assert text in str(found.causes[0])


@pytest.mark.parametrize(("at", "state"), [(3.0, "refuses"), (21.0, "hangs")])
def test_what_a_rank_says_after_another_hung_until_the_limit_is_no_answer(at, state, tmp_path):
    """Rank 1 hangs in question 0, and ends after its 20 s; rank 0 raises before or after that."""
    begun, said = [0, "begun", "", "", 1.0], [0, "refuses", "RuntimeError: closed by peer", "", at]
    (tmp_path / "0.notes").write_text(f"{json.dumps(begun)}\n{json.dumps(said)}\n")
    (tmp_path / "1.notes").write_text(f"{json.dumps(begun)}\n")
    (tmp_path / "1.stack").write_text('Thread 1 (most recent call first):\n  File "a.py", line 3\n')
    question = Question("calls", "recv", "one message", 2, print, (), 20.0)
    notes = worlds._read(tmp_path, 2, None)
    answer = worlds.Asker("gloo", "cpu")._answer(question, 0, notes)
    assert answer is not None
    assert answer.state == state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "call"),
    sorted({(section, call) for section, call, _ in (FAULTS | SLOW).values()}),
    ids=lambda word: word.replace(" ", "_"),
)
def test_of_a_backend_without_a_fault_nothing_is_told(section, call):
    _, answers = asked("faultless", section, call)
    assert causes_of(answers) == []
    assert [answer for answer in answers if answer.state == NOT_ASKED] == []


@pytest.mark.slow
def test_the_smallest_case_fails_as_a_program_without_this_package(tmp_path):
    _, answers = asked("loses_past_65536", *FAULTS["loses_past_65536"][:2])
    (cause,) = causes_of(answers)
    text = program.of(cause.smallest.question, ("faulty_backends",))
    assert "collectives" not in text
    (tmp_path / "smallest.py").write_text(text)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "smallest.py"]
    path = os.environ | {"PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert "AssertionError: Tensor-likes are not equal!" in done.stderr


def test_a_certificate_lists_what_was_not_asked_and_compares_with_another(tmp_path):
    def answer(case, state, detail=""):
        return Answer(Question("sizes", "all_gather", case, 2, print), state, detail)

    answers = [answer("a", "works"), answer("b", "wrong", "x"), answer("c", NOT_ASKED, "no memory")]
    found = certificate.Certificate(Plan("mine"), answers, 1.0)
    json_file, page = found.write(tmp_path)
    assert "- all_gather(c), 2 ranks: no memory" in page.read_text()
    before = certificate.read(json_file)
    assert json.loads(json_file.read_text()) == before
    after = certificate.Certificate(Plan("mine"), [*answers[:1], answer("b", "works")], 1.0).data()
    assert certificate.differences(before, after) == [
        "sizes: all_gather(b; 2 ranks): was wrong, is works"
    ]


@pytest.mark.parametrize(
    ("words", "text", "status"),
    [
        (["nonesuch"], "backend='nonesuch' is not known to this torch", 2),
        (["gloo", "--sizes", "1,x"], "--sizes 1,x: write whole numbers with commas", 2),
        (["gloo", "--against", "no.json"], "no.json cannot be read", 2),
        (["nccl"], "nccl needs one GPU per rank: 0 visible", 3),
    ],
    ids=["backend", "sizes", "against", "not_here"],
)
def test_what_cannot_be_asked_is_said_in_a_sentence(words, text, status):
    result = CliRunner().invoke(app, ["verify", *words])
    assert (result.exit_code, text in " ".join(result.output.split())) == (status, True)


CLAIM = """
[[claim]]
backend = "gloo"
device = "cpu"
form = "broadcast:other_root"
state = "refuses"
reason = "both ranks are told"
"""


def test_calls_that_do_not_match_are_judged_where_the_backends_own_claims_name_them(tmp_path):
    file = tmp_path / "claims.toml"
    file.write_text(CLAIM)
    (question,) = [one for one in stated.questions("gloo", "cpu") if one.call == "broadcast"]
    told = Answer(question, STATED, "rank 0 returned; rank 1 returned")
    assert stated.judged(told, claims.load(None)) == told  # ours claim nothing of them
    found = stated.judged(told, stated.load(file))
    assert (found.state, "it is claimed that this refuses: both ranks are" in found.detail) == (
        "wrong",
        True,
    )
    kept = stated.judged(
        replace(told, detail="rank 0 raised X; rank 1 raised X"), stated.load(file)
    )
    assert kept.state == "works"
    file.write_text(CLAIM.replace("other_root", "other_rot"))
    with pytest.raises(ValueError, match="claims nothing of calls that do not match: all_reduce:"):
        stated.load(file)


def test_the_command_needs_no_pytest():
    """The extra "verify" is for who asks with pytest."""
    text = "import sys; sys.modules['pytest'] = None; from collectives.verify import asking, certificate"
    subprocess.run([sys.executable, "-c", text], check=True, timeout=300)
