"""What `collectives verify` asks besides: lengths, widths, groups, several calls, and failure."""

import pytest

from collectives.backends import availability
from collectives.verify import ask, asking
from collectives.verify.certificate import Certificate
from collectives.verify.plan import Plan
from collectives.verify.question import NOT_ASKED

_SECTIONS = ("group", "widths", "sizes", "groups", "at once", "failure", "stated")


def pytest_generate_tests(metafunc):
    """Nothing without --backend: tests/verify asks faulty backends, each about its fault."""
    found = [
        pytest.param(backend, device, id=f"{backend}-{device}")
        for backend in metafunc.config.getoption("backend") or ()
        for device in availability.devices_of(backend)
    ]
    metafunc.parametrize(("backend", "device"), found)
    metafunc.parametrize("section", _SECTIONS)


@pytest.mark.usefixtures("fork_server")
def test_asked(backend, device, section, pytestconfig, record_property):
    ranks = ask.world_sizes(pytestconfig, (2, 4))
    if reason := availability.unavailable(backend, device, max(ranks)):
        pytest.skip(reason)
    plan = Plan(backend, device, world_sizes=ranks, lesson_sizes=())
    answers = asking.ask(
        plan, lambda *_: None, lambda question: question.section in ("group", section)
    )
    record_property(ask.ANSWERS, (backend, device, [answer.as_row() for answer in answers]))
    found = Certificate(plan, answers, 0.0)
    unasked = [f"not asked: {one.question}" for one in answers if one.state == NOT_ASKED]
    if found.causes or unasked:
        pytest.fail("\n".join([*map(str, found.causes), *unasked[:20]]), pytrace=False)
