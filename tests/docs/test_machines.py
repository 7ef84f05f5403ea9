"""What docs/machines.md says of two machines happens on two machines, word by word."""

import re
import sys
import threading
import time

import nbformat
import pytest
from lesson_source import printed_by
from machines import needs_a_lab
from processes import finished
from repository import ROOT

from collectives import Lab
from tools import docs

PAGE = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
MEET, TRAIN = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


# By title of a section, when each machine raises; and what that means, in time limits.
WHEN = {
    title: dict(zip(("node0", "node1"), cells, strict=True))
    for title, *cells in re.findall(
        r"^\| \[(.*?)\]\(#.*?\) \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE
    )
}
# A busy machine adds to them.
IN_LIMITS = {
    "at once": (0, 0.9),
    "T": (0.9, 3),
    "up to 2.3 T": (0.9, 4),
    "5 T": (4.9, 12),
    "some seconds": (1, 10),
}


def quotes(title, case=""):
    """(machine, message) of each quoted message."""
    quoted = rf"^```text ?(\w*){case}\n(.*?)^```$"
    return re.findall(quoted, SECTIONS[title], re.MULTILINE | re.DOTALL)


def holds(text, quote):
    """Whether the text contains the parts of the quote, in this order. Dots are left out."""
    parts = [re.escape(part.strip()) for part in " ".join(quote.split()).split("...")]
    return re.search(".*".join(parts), " ".join(text.split())) is not None


# Runs the program, and prints how many time limits it took: importing torch does not count.
TIMED = """
import os, sys, time
import torch.distributed
begin = time.monotonic()
try:
    exec(sys.argv[1])
finally:
    print("limits:", (time.monotonic() - begin) / float(os.environ["LIMIT"]))
"""


def meet(lab, nodes=(0, 1), during=None, **environ):
    """What each machine printed, stdout and stderr, after it ran the program of the page."""
    variables = {"WHERE": "env://", "MASTER_ADDR": "node0", "MASTER_PORT": "29500", "LIMIT": "4"}
    variables |= {"STEPS": "1", "OMP_NUM_THREADS": "1", "RANK": "{node}"} | environ
    begun = threading.Event()

    def tell(name, stream, line):
        if line == "in step\n" and during and not begun.is_set():
            begun.set()
            threading.Thread(target=during).start()

    words = ["env", *(f"{name}={value}" for name, value in variables.items())]
    words += [sys.executable, "-c", TIMED, MEET]
    done = lab.run(words, on=nodes, timeout=100, on_line=tell)
    return {f"node{node}": one.stdout + one.stderr for node, one in zip(nodes, done, strict=True)}


def works(said, steps=1):
    return [text.count("in step\n") for text in said.values()] == [steps, steps] and not any(
        "Error" in text for text in said.values()
    )


def store_closed(lab):
    lab.close_port(0, 29500)
    return meet(lab)


def only_store_open(lab):
    for node in lab.nodes:
        lab.close_port(node, "{1024-29499, 29501-65535}")
    return meet(lab, LIMIT="1.5")


def refused_first(said):
    """Which of the two machines connects first, to itself, is a matter of luck: call it node0."""
    return dict(
        zip(said, sorted(said.values(), key=lambda text: "refused" not in text), strict=True)
    )


def loopback_name(lab):
    add = "echo 127.0.1.1 node{node} | cat - /etc/hosts > /run/disk/new; cat /run/disk/new > /etc/hosts"
    lab.run(["sh", "-c", add])
    said = meet(lab, MASTER_ADDR="10.13.0.1", LIMIT="1.5")
    assert works(meet(lab, MASTER_ADDR="10.13.0.1", MASTER_PORT="29501", GLOO_SOCKET_IFNAME="eth0"))
    return refused_first(said)


def network_to_nowhere(lab):
    bridge = "ip link add net1 type bridge && ip addr add 10.99.0.$(({node} + 1))/24 dev net1"
    lab.run(["sh", "-c", f"{bridge} && ip link set net1 up"])
    said = meet(lab, GLOO_SOCKET_IFNAME="net1", LIMIT="1.5")
    assert works(meet(lab, GLOO_SOCKET_IFNAME="eth0", MASTER_PORT="29501"))
    return said


def cable_out(lab):
    return meet(lab, STEPS="100", during=lambda: lab.unplug(1))


def run_on_0(lab, program):
    (done,) = lab.run([sys.executable, "-c", f"import torch\n{program}"], on=[0], timeout=100)
    return done.stderr


def full_disk(lab):
    lab.run(["sh", "-c", "head -c 66000000 /dev/zero > /run/disk/other"], on=[0])
    file = "'/run/disk/checkpoint.pt'"
    saves = run_on_0(lab, f"torch.save({{'weight': torch.ones(1_000_000)}}, {file})")
    return {"node0": saves + run_on_0(lab, f"torch.load({file})")}


def full_shared_memory(lab):
    lab.fill_disk(0, "/dev/shm")
    return {"node0": run_on_0(lab, "torch.ones(1_000_000).share_memory_()")}


SCENARIOS = {
    "The store's port is closed": store_closed,
    "Nobody listens": lambda lab: meet(lab, nodes=[1]),
    "A name that nobody knows": lambda lab: meet(lab, nodes=[1], MASTER_ADDR="nodeX"),
    "Only the store's port is open": only_store_open,
    "No interface of that name": lambda lab: meet(lab, GLOO_SOCKET_IFNAME="eth9"),
    "A network that leads nowhere": network_to_nowhere,
    "127.0.1.1": loopback_name,
    # That a file on a common disk works is proved in the lesson on the rendezvous.
    "A file that only one machine sees": lambda lab: meet(lab, WHERE="file:///run/disk/meet"),
    "The cable is out": cable_out,
    "A full disk under a checkpoint": full_disk,
    "A full /dev/shm": full_shared_memory,
}
TIMES = "How soon training continues"
RESTART = "torchrun's restart that never comes back"


def test_every_section_is_tried():
    assert list(SECTIONS) == [*SCENARIOS, TIMES, RESTART]


def test_the_table_of_times_has_the_accidents_of_the_lesson_and_how_each_ends():
    """Its times were measured once; the rest is what the notebook of the lesson shows."""
    notebook = nbformat.read("notebooks/machines/elastic.ipynb", as_version=4)
    outputs = [printed_by(cell) for cell in notebook.cells if cell.get("outputs")]
    lines = [line.split() for text in outputs for line in text.splitlines()[2:]]
    rows = [
        line.strip("| ").split(" | ") for line in docs.SECTIONS["elastic"].read().splitlines()[2:]
    ]
    assert [[row[0].replace(" ", "_"), *row[1:4]] for row in rows] == lines


@needs_a_lab
@pytest.mark.parametrize("title", SCENARIOS)
def test_a_mistake_says_what_is_quoted(title):
    with Lab(2) as lab:
        said = SCENARIOS[title](lab)
    assert quotes(title)
    for machine, quote in quotes(title):
        assert holds(said[machine], quote), said[machine]
    for machine, when in WHEN.get(title, {}).items():
        if when == "does not run":
            assert machine not in said
            continue
        (limits,) = re.findall(r"^limits: (\S+)$", said[machine], re.MULTILINE)
        least, most = IN_LIMITS[when]
        assert least <= float(limits) <= most, said[machine]


def test_the_table_says_of_every_mistake_before_and_in_training_when_it_is_noticed():
    assert list(WHEN) == [title for title in SCENARIOS if not title.startswith("A full")]


def loopback_interface(lab):
    said = refused_first(meet(lab, GLOO_SOCKET_IFNAME="lo", LIMIT="1.5"))
    return {machine: text.replace("127.0.0.1", "127.0.1.1") for machine, text in said.items()}


def store_refused(lab):
    lab.close_port(0, 29500, reset=True)
    return meet(lab)


# Other ways to the same: the section, and what stands after the machine's name at its quotes.
VARIANTS = {
    "one interface": (
        *("No interface of that name", " if node1 alone lacks it"),
        lambda lab: meet(lab, GLOO_SOCKET_IFNAME="eth{node}"),
    ),
    "loopback interface": ("127.0.1.1", "", loopback_interface),
    "refused, not dropped": ("The store's port is closed", "", store_refused),
    "no power": (
        *("The cable is out", ""),
        lambda lab: meet(lab, STEPS="100", during=lambda: lab.power_off(1)),
    ),
}


@needs_a_lab
@pytest.mark.weekly
@pytest.mark.parametrize("name", VARIANTS)
def test_another_way_to_the_same_mistake_says_the_same(name):
    title, case, scenario = VARIANTS[name]
    with Lab(2) as lab:
        said = scenario(lab)
    assert quotes(title, case)
    for machine, quote in quotes(title, case):
        assert holds(said[machine], quote), said[machine]


@needs_a_lab
@pytest.mark.weekly
def test_a_cable_that_is_out_for_less_than_the_limit_does_no_harm():
    with Lab(2) as lab:

        def out():
            lab.unplug(1)
            time.sleep(3)
            lab.plug(1)

        assert works(meet(lab, LIMIT="20", STEPS="20", during=out), steps=20)


@needs_a_lab
def test_a_process_that_is_killed_is_noticed_long_before_the_limit():
    with Lab(2) as lab:
        # On its machine -1 stands for all processes but the first.
        kill = ["sh", "-c", "kill -9 -1"]
        said = meet(lab, STEPS="1000", LIMIT="90", during=lambda: lab.run(kill, on=[1]))
    assert re.search("Connection closed by peer|reset by peer", said["node0"]), said["node0"]


def restarted(tmp_path, **environ):
    (tmp_path / "train.py").write_text(TRAIN)
    (command,) = re.findall(r"^```sh\ntorchrun (.*?)\n```$", SECTIONS[RESTART], re.MULTILINE)
    return finished(f"torchrun {command}", cwd=tmp_path, env={"OMP_NUM_THREADS": "1"} | environ)


@pytest.mark.weekly
@pytest.mark.parametrize("cured", [False, True], ids=["mistake", "cure"])
def test_the_restart_of_torchrun_comes_back_with_a_store_of_its_own_alone(tmp_path, cured):
    """If the mistake works one day, torch has mended it: then say so in docs/machines.md
    and in the lesson on failover.
    """
    if cured:
        done = restarted(tmp_path, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        assert done.returncode == 0, done.stderr
        # Two processes write: print() sends the text and the end of its line one by one.
        assert sorted(done.stdout) == sorted("done\ndone\n")
        return
    # Some runs work by luck, as the page says.
    done = next((done for _ in range(8) if (done := restarted(tmp_path)).returncode), None)
    assert done, "eight runs of eight worked"
    assert done.returncode == 1
    ((_, quote),) = quotes(RESTART)
    assert holds(done.stderr, quote), done.stderr
