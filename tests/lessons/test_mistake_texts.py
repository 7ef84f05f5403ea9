"""The messages that the lessons on mistakes quote are those that really come.

A quoted message is a fenced block below **You see.** or **Early.** Three dots in it stand for what
is left out. If the paragraph before it links to a page, the message is from there, and was never run
here. If that paragraph names TORCH_DISTRIBUTED_DEBUG=DETAIL (or INFO), the message comes with this setting. If it says "30
minutes", the message comes after the time limit of gloo, which is shorter here.
"""

import functools
import re
from collections import defaultdict
from datetime import timedelta
from typing import NamedTuple

import jupytext
import pytest
import torch
import torch.distributed as dist

from collectives.backends import claims
from collectives.course import chapters, files, mistakes
from tools import mistakes_table

PATHS = files.of_chapter(chapters.read()["mistakes"])
STEPS_OF = {path: files.load(path).STEPS for path in PATHS}
STEPS = {step.__name__: step for steps in STEPS_OF.values() for step in steps}
# A cure follows each mistake.
MISTAKES = [step.__name__ for steps in STEPS_OF.values() for step in steps[::2]]

# What differs from run to run, from machine to machine, or from one version of torch to the next.
VOLATILE = (
    (r"[^\s\[]*?(\w+\.cc):\d+", r"\1"),
    (r"\[[\da-f.:]+\]:\d+", "[address]:n"),
    (r"port: \d+, useIpv6: \w+, code: -?\d+", "port: n"),
    (r"\d+ ?ms\b", "n ms"),
)


class Quote(NamedTuple):
    """A message that a lesson quotes of a mistake, and the paragraph before it."""

    lead: str
    text: str

    @property
    def is_from_a_page(self):
        return "](https://" in self.lead

    @property
    def level(self):
        named = re.search(r"TORCH_DISTRIBUTED_DEBUG=(\w+)", self.lead)
        return named[1] if named else "OFF"

    @property
    def is_after_the_time_limit(self):
        return "30 minutes" in self.lead


@functools.cache
def prose():
    """By mistake: what stands before it and after it in its lesson."""
    found = {}
    for path, steps in STEPS_OF.items():
        cells = [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "markdown"]
        for step, before, after in zip(steps[::2], cells[1::2], cells[2::2], strict=False):
            found[step.__name__] = f"{before}\n\n{after}"
    return found


# What gloo adds of late: an older torch says nothing of the kind, and ends without a full stop.
ADDED = re.compile(r"\.\s+This is typically caused.*", re.DOTALL)
IS_ADDED = claims.holds(">=2.13", torch.__version__)


def quotes(name):
    parts = re.split(r"^```(?:text)?$", prose()[name], flags=re.MULTILINE)
    return [
        Quote(
            " ".join(lead.strip().rpartition("\n\n")[2].split()),
            text if IS_ADDED else ADDED.sub("", text),
        )
        for lead, text in zip(parts[:-1:2], parts[1::2], strict=True)
    ]


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


ANSWER = re.compile(
    r"<details><summary>What is wrong\?</summary>\n\n\*\*Cause: [^*]+\.\*\* .+"
    r"\n\n\*\*Cure\.\*\* .+\n\n\*\*Early\.\*\* .+\n\n</details>",
    re.DOTALL,
)


@pytest.mark.parametrize("name", MISTAKES)
def test_the_answer_is_folded_below_what_one_sees(name):
    above, _, below = prose()[name].partition("<details>")
    assert re.fullmatch(r"## Program \d: [^\n]+\n\n\*\*You see\.\*\* .+\n\n", above, re.DOTALL)
    assert ANSWER.fullmatch(f"<details>{below}")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_message_that_is_quoted_comes(name, monkeypatch):
    came = defaultdict(list)  # what the ranks came to, by how they were run

    def run(level, is_impatient):
        monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", level)
        step = impatient(STEPS[name]) if is_impatient else STEPS[name]
        came[level, is_impatient] += mistakes.run_isolated(step, mistakes.own_world(step))[0]

    for quote in quotes(name):
        if quote.is_from_a_page:
            continue
        how = quote.level, quote.is_after_the_time_limit
        # Which of two errors a rank gets may be luck, and that of a busy machine is bad.
        for _ in range(3 * mistakes_table.TIMES):
            if not any(holds(one.text, quote.text) for one in came[how]):
                run(*how)
        texts = {one.text for one in came[how]}
        assert any(holds(text, quote.text) for text in texts), (quote.text, texts)
