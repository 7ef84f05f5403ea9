"""The numbers in a lesson's tables and in its answers to "Predict first" are those of the run."""

import re

import pytest
from lesson_source import FIRST_CALLS, Prediction, Source

from collectives.course import chapters
from collectives.course.results import aligned

CHAPTERS = chapters.read()
# A mistake and a myth are told by their own tests.
NAMES = [
    name
    for key, chapter in CHAPTERS.items()
    if key not in ("mistakes", "myths")
    for name in chapter.names
]

NUMBER = r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?!\w|\.\d)"

# No numbers of the run: names of ranks and places, versions, and where a link leads.
NAMES_OF_SOMETHING = (
    r"\b(?:rank|row|column|element|place|expert|tag)s? \d+(?:(?:, | and |, and | or | to )\d+)*"
    r"|\b(?:torch|Python|NCCL) [\d.]+|MASTER_PORT=\d+|\]\([^)]*\)"
)
# A sum that is written out, as in 6,480 / 80 = 81, shows itself where its numbers are from.
WRITTEN_OUT = rf"{NUMBER}(?: (?:[-+*/=]|\*\*) {NUMBER})+"


@pytest.mark.parametrize("name", [name for name in NAMES if "print this:" in Source(name).text])
def test_four_ranks_print_the_table(name):
    for step, table in Source(name).tables:
        _, *rows = Source(name).printed[step].splitlines()
        _, *expected = aligned("", table).splitlines()
        assert rows == expected


def test_every_lesson_on_a_call_shows_what_four_ranks_print():
    """The first calls by the output of their first step alone, which no table repeats."""
    for name in CHAPTERS["calls"].names:
        source = Source(name)
        assert bool(source.tables) != (name in FIRST_CALLS), name
        header, *rows = source.printed[source.steps[0]].splitlines()[1:]
        assert (header.split()[0], len(rows)) == ("rank", 4), name


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(NUMBER, text)]


def is_in(text: str, known: set[float]) -> bool:
    """A fraction may be rounded."""
    value = float(text.replace(",", ""))
    digits = len(re.sub("e.*|^[-0.]*|[.]", "", text)) if "." in text else 16
    return any(f"{number:.{digits}g}" == f"{value:.{digits}g}" for number in known)


def unfounded(prediction: Prediction, printed: str) -> list[str]:
    """The numbers of an answer that are not known: neither printed, nor said before the answer, nor
    in arithmetic that is written out. The first number must be printed.
    """
    answer = re.sub(NAMES_OF_SOMETHING, "", " ".join(prediction.answer.split()), flags=re.I)
    first, *others = re.findall(NUMBER, re.sub(WRITTEN_OUT, "", answer)) or [""]
    seen = {*numbers(printed)}
    known = seen | {*numbers(prediction.before)}
    found = [] if not first or is_in(first, seen) else [first]
    return found + [number for number in others if not is_in(number, known)]


def without_ranks(printed: str) -> str:
    """Without the title, and without the header and the column of ranks if it has them."""
    _, header, *lines = printed.splitlines()
    if header.split()[0] == "rank":
        return "\n".join(line.split(maxsplit=1)[1] for line in lines)
    return "\n".join([header, *lines])


def test_the_column_of_ranks_is_not_read():
    assert without_ranks("step: proved on all 2 ranks\n  rank  sum\n  0     11\n") == "11"
    assert without_ranks("step: proved in a lab\n  node0: 11\n").split() == ["node0:", "11"]


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "**Predict first.**" in Source(name).text]
)
def test_the_numbers_of_an_answer_are_those_of_the_run(name):
    faults = []
    for prediction in Source(name).predictions:
        # Without the column of ranks, which would hold each small number.
        rows = without_ranks(Source(name).printed[prediction.step])
        if found := unfounded(prediction, rows):
            faults.append(f"{found} in {prediction.step}, which prints\n{rows}")
    assert not faults, "\n\n".join(faults)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("It is 12, on ranks 0 and 3.", []),
        ("It is 13.", ["13"]),
        ("It is 5.", ["5"]),  # the question says it, and the run does not print it
        ("12: the 5 is not in it, and 6 is not either.", ["6"]),
        ("12, so there are 1,200 / 12 = 100.", []),
        ("12, so there are 100.", ["100"]),
        ("It is 0.33.", []),
        ("It is 0.34.", ["0.34"]),
    ],
)
def test_a_number_that_is_not_known_is_found(answer, found):
    prediction = Prediction("step", "What becomes of 5?", answer)
    assert unfounded(prediction, "12 [0.3333]") == found
