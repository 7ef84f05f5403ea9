"""What `collectives verify` asks besides: lengths, widths, groups, several calls, and failure."""

import pytest

from collectives.backends import availability
from collectives.verify import ask, asking, program
from collectives.verify.certificate import Certificate
from collectives.verify.plan import Plan
from collectives.verify.question import NOT_ASKED, Answer

# What the other tests here ask.
_ELSEWHERE = ("calls", "lessons")
_NAME_ONE = "name a backend: --backend NAME, and --import MODULE if a module of yours registers it"


def pytest_generate_tests(metafunc):
    """Only with --backend: tests/verify asks faulty backends, each about its fault."""
    found = [
        pytest.param(backend, device, id=f"{backend}-{device}")
        for backend in metafunc.config.getoption("backend") or ()
        for device in availability.devices_of(backend)
    ]
    none = pytest.param("", "", id="none", marks=pytest.mark.skip(reason=_NAME_ONE))
    metafunc.parametrize(("backend", "device"), found or [none])


@pytest.mark.usefixtures("fork_server")
def test_asked(backend, device, pytestconfig, record_property):
    ranks = ask.world_sizes(pytestconfig, (2, 4))
    if reason := availability.unavailable(backend, device, max(ranks)):
        pytest.skip(reason)
    plan = Plan(backend, device, world_sizes=ranks, lesson_sizes=())
    answers = asking.ask(plan, lambda *_: None, lambda asked: asked.section not in _ELSEWHERE)
    rows = [answer.as_row() | {"program": _program(answer)} for answer in answers]
    record_property(ask.ANSWERS, (backend, device, rows))
    found = Certificate(plan, answers, 0.0)
    unasked = [f"not asked: {one.question}" for one in answers if one.state == NOT_ASKED]
    if found.causes or unasked:
        pytest.fail("\n".join([*map(str, found.causes), *unasked[:20]]), pytrace=False)


def _program(answer: Answer) -> str:
    """It travels as text, which a worker of pytest-xdist can send."""
    if not answer.is_fault:
        return ""
    return program.of(answer.question, tuple(availability.imported))
