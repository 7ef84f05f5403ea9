"""The messages and numbers that the lessons on mistakes quote are those that really come.

A quoted message is a fenced block below **Symptom.** or **Early.** Three dots in it stand for what
is left out. If the paragraph before it says "documented", it was never run here. If that paragraph
names TORCH_DISTRIBUTED_DEBUG=DETAIL (or INFO), the message comes with this setting. If it says "30
minutes", the message comes after the time limit of gloo, which is shorter here.
"""

import functools
import re
import struct
from datetime import timedelta
from typing import NamedTuple

import jupytext
import nbformat
import pytest
import torch.distributed as dist

from collectives.lesson import files, mistakes
from collectives.lesson.chapters import CHAPTERS
from collectives.lesson.make import mistakes_table, notebooks

PATHS = files.of_chapter(CHAPTERS["mistakes"])
STEPS = {step.__name__: step for path in PATHS for step in files.load(path).STEPS}

# What differs from run to run, from machine to machine, or from one version of torch to the next.
VOLATILE = (
    (r"[^\s\[]*?(\w+\.cc):\d+", r"\1"),
    (r"\[[\da-f.:]+\]:\d+", "[address]:n"),
    (r"port: \d+, useIpv6: \w+, code: -?\d+", "port: n"),
    (r"\d+ ?ms\b", "n ms"),
)


class Quote(NamedTuple):
    """A message that a lesson quotes of a mistake, its number there, and the paragraph before it."""

    name: str
    number: int
    lead: str
    text: str

    @property
    def is_documented(self):
        return "documented" in self.lead

    @property
    def level(self):
        named = re.search(r"TORCH_DISTRIBUTED_DEBUG=(\w+)", self.lead)
        return named[1] if named else "OFF"

    @property
    def is_after_the_time_limit(self):
        return "30 minutes" in self.lead


def prose(path):
    """By mistake: what stands before it and after it in its lesson."""
    cells = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "markdown"]
    names = [step.__name__ for step in files.load(path).STEPS]
    return {
        name: cells[1 + number : 3 + number] for number, name in enumerate(names) if not number % 2
    }


PROSE = {name: "\n\n".join(cells) for path in PATHS for name, cells in prose(path).items()}


def quotes(name):
    parts = re.split(r"^```(?:text)?$", PROSE[name], flags=re.MULTILINE)
    return [
        Quote(name, number, " ".join(lead.strip().rpartition("\n\n")[2].split()), text)
        for number, (lead, text) in enumerate(zip(parts[:-1:2], parts[1::2], strict=True), 1)
    ]


QUOTES = [quote for name in PROSE for quote in quotes(name)]
RUN = [quote for quote in QUOTES if not quote.is_documented]


def masked(text):
    text = " ".join(text.split())
    for pattern, replacement in VOLATILE:
        text = re.sub(pattern, replacement, text)
    return text


def holds(text, quote):
    """Whether the text contains the parts of the quote, in this order."""
    parts = [part.strip() for part in masked(quote).split("...")]
    return re.search(".*".join(map(re.escape, parts)), masked(text)) is not None


def impatient(step):
    """The same step, in which no rank waits for 30 minutes: the time limit is less than a second."""

    @functools.wraps(step)
    def run(rank, world_size, device):
        limit = timedelta(seconds=0.7)
        dist.distributed_c10d.default_pg_timeout = limit  # of the groups that the step creates
        if not dist.is_initialized():
            return step(rank, world_size, device)
        store = dist.PrefixStore("impatient", dist.distributed_c10d._get_default_store())
        dist.destroy_process_group()
        dist.init_process_group(
            "gloo", timeout=limit, store=store, rank=rank, world_size=world_size
        )
        return step(rank, world_size, device)

    return run


@pytest.mark.parametrize("quote", RUN, ids=lambda quote: f"{quote.name}-{quote.number}")
def test_a_quoted_message_is_what_comes(quote, monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", quote.level)
    step = STEPS[quote.name]
    texts = []
    for _ in range(mistakes_table.TIMES):  # which of two errors a rank gets may be luck
        outcomes, _ = mistakes.run_isolated(
            impatient(step) if quote.is_after_the_time_limit else step
        )
        texts += [one.text for one in outcomes]
        if any(holds(text, quote.text) for text in texts):
            return
    pytest.fail("\n".join(dict.fromkeys(texts)))


def test_30_minutes_are_the_milliseconds_that_the_messages_name():
    assert dist.constants.default_pg_timeout == timedelta(milliseconds=1800000)


@pytest.mark.parametrize("name", PROSE)
def test_a_mistake_that_ends_in_an_error_quotes_its_message(name):
    if STEPS[name].world.symptom != "wrong numbers":
        assert any(quote.level == "OFF" and not quote.is_documented for quote in quotes(name))


def test_the_messages_that_are_searched_for_most_are_quoted():
    quoted = " ".join(" ".join(quote.text.split()) for quote in QUOTES)
    for text in (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=",
        "Expected to have finished reduction in the prior iteration before starting a new one",
        "Detected mismatch between collectives on ranks",
        "Connection closed by peer",
        "Timed out waiting 1800000ms for recv operation to complete",
    ):
        assert text in quoted


# The numbers that the prose explains: they must be in the output of the notebook.
EXPLAINED = {
    "only_rank_0_reduces": ["51"],
    "equal_calls_in_another_order": ["102", "201"],
    "another_dtype": ["1084227584", "5.000000476837158"],
    "another_reduction": ["5"],
    "reduce_read_off_the_root": ["3", "5"],
    "column_in_place": ["[2, 4]"],
    "no_sampler": ["18"],
    "padded_accuracy": ["7", "9", "6"],
    "batch_norm_of_one_rank": ["1", "11"],
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_number_that_the_prose_explains_is_printed(name):
    (path,) = [path for path in PATHS if name in prose(path)]
    notebook = nbformat.read(notebooks.path_of(path), as_version=4)
    outputs = [
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    ]
    (printed,) = [text for text in outputs if text.startswith(f"{name}: ")]
    for number in EXPLAINED[name]:
        whole = rf"(?<![\d.]){re.escape(number)}(?!\.?[1-9])(?!\d)"
        assert re.search(whole, PROSE[name])
        assert re.search(whole, printed)


def test_the_absurd_number_is_5_read_as_an_integer():
    assert struct.unpack("i", struct.pack("f", 5.0)) == (1084227584,)
    after_5 = struct.unpack("f", struct.pack("i", 1084227584 + 1))
    assert after_5 == (5.000000476837158,)
