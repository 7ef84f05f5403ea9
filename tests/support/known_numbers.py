"""The numbers of a text, and which of them follow from numbers that a run prints."""

import re

NUMBER = r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?!\w|\.\d)"
EXPRESSION = rf"{NUMBER}(?: (?:[-+*/]|\*\*) {NUMBER})+"

# No numbers: names of ranks and places, versions, and where a link leads.
NAMES_OF_SOMETHING = re.compile(
    r"\b(?:rank|row|column|element|place|expert|tag)s? \d+(?:(?:, | and |, and | or | to )\d+)*"
    r"|\b(?:torch|Python|NCCL) [\d.]+|MASTER_PORT=\d+|\]\([^)]*\)",
    re.IGNORECASE,
)


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(NUMBER, text)]


def in_expressions(answer: str, known: set[float]) -> set[float]:
    """The numbers of the answer's expressions that begin or end with known numbers."""
    founded: set[float] = set()
    for _ in range(2):
        for expression in re.findall(EXPRESSION, answer):
            operands = {*numbers(expression)}
            value = round(float(eval(expression.replace(",", ""))), 9)
            if operands <= known | founded or value in known | founded:
                founded |= {*operands, value}
    return founded


def is_in(text: str, known: set[float]) -> bool:
    """A fraction may be rounded."""
    value = float(text.replace(",", ""))
    digits = len(re.sub("e.*|^[-0.]*|[.]", "", text)) if "." in text else 16
    return any(f"{one:.{digits}g}" == f"{value:.{digits}g}" for one in known)
