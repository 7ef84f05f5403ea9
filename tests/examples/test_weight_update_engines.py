"""The programs of examples/weight_update_engines: a trainer that speaks SGLang's and vLLM's HTTP,
and an engine that is played, right or with one of the faults that it knows.
"""

import dataclasses
import json
import re

import psutil
import pytest
from played_engines import FOLDER, ROOT, engine, faults, lacks, met, module, trained
from processes import children, wait_until

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


CASES = [(fault, protocol) for protocol in PROTOCOLS for fault in faults()]


@pytest.mark.slow
@pytest.mark.parametrize("fault", faults())
def test_a_fault_is_named_as_the_page_says(fault, protocol, healthy):
    measured = MEASURED[protocol][fault]
    if lacks(fault, protocol):
        assert measured["lacks"] == lacks(fault, protocol)
        return
    found = met(fault, protocol, healthy)
    seconds = found.pop("seconds"), measured.pop("seconds")
    assert measured.pop("does") == faults()[fault]
    assert (found, found["status"]) == (measured, 1)
    assert abs(seconds[0] - seconds[1]) < 5


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
