"""Logs as people paste them: what `diagnose --log` must say of each, and what it never may.

`logs/expect.tsv` names the logs beside it, with what must be said and what must not; " | " stands
between two of them. Lines of torch in these logs are its own words; the rest was made up.
"""

import csv
import io
import re
from pathlib import Path

import pytest
from repository import ROOT

from collectives.diagnosis.log.job import Logs
from collectives.diagnosis.log.report import report

LOGS = Path(__file__).with_name("logs")

with (LOGS / "expect.tsv").open(encoding="utf-8") as table:
    EXPECTED = list(csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE))


def flat(text):
    return " ".join(text.lower().split())


def phrases(cell):
    return [flat(phrase) for phrase in (cell or "").split(" | ") if phrase]


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: row["log"])
def test_a_pasted_log_is_explained(row):
    text = report([str(LOGS / f"{row['log']}.log")])[0]
    said = flat(text)
    assert [one for one in phrases(row["says"]) if one not in said] == [], text
    assert [one for one in phrases(row["never"]) if one in said] == [], text


def test_every_log_has_its_expectation():
    assert {f"{row['log']}.log" for row in EXPECTED} == {path.name for path in LOGS.glob("*.log")}


with (LOGS / "wordings.tsv").open(encoding="utf-8") as table:
    WORDINGS = list(csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize("row", WORDINGS, ids=lambda row: f"{row['torch']}-{row['entry']}")
def test_a_line_of_every_torch_is_read(row, tmp_path):
    """`source`: the thread where it was posted, or the file that holds its format string."""
    logs = Logs()
    logs.read("job.log", io.BytesIO(f"{row['line']}\n".encode()))
    assert list(logs.sightings) == [row["entry"]]
    if row["entry"] in ("watchdog", "watchdog-status"):
        assert logs.watchdog.recorded == 1


def quoted_errors():
    """The errors that our pages and lessons quote: a block with the name of an exception in it."""
    pages = [ROOT / "docs" / "machines.md", *sorted((ROOT / "lessons" / "mistakes").glob("*.py"))]
    for path in pages:
        text = re.sub(r"^# ?", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for number, block in enumerate(re.findall(r"^```text[^\n]*\n(.*?)^```", text, re.M | re.S)):
            yield pytest.param(block, id=f"{path.stem}-{number}")


@pytest.mark.parametrize("block", list(quoted_errors()))
def test_an_error_that_we_quote_is_known(block, tmp_path):
    log = tmp_path / "job.log"
    log.write_text(block)
    text = report([str(log)])[0]
    # A name that Python itself gives needs no entry: that it was raised says it all.
    assert '"\n  line ' in text or re.match(r"raised: a process raised \w+Error", text), text
