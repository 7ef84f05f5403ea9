"""What is wrong with a backend: each cause once, however many questions show it.

Two wrong answers have one cause if they were given at one place of the author's code, or where none
is known by one call, in one kind of question. What they have in common, against what was answered
rightly, is the condition of the cause. A wrong answer to a later kind of question that an earlier
condition covers tells nothing new.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from collectives.backends import claims
from collectives.semantics.cell import Cell
from collectives.verify import at_once
from collectives.verify.question import SECTIONS, Answer, Question

# Variants that are about the caller's tensors more than about a call: one cause for all calls.
_OF_TENSORS = {
    "noncontiguous": "with tensors that have gaps in memory",
    "lazy": "with tensors that are negated or conjugated when they are read",
    "scalar": "with tensors without a dimension",
    "empty": "with tensors without elements",
    "offset": "with tensors that begin at an odd address",
}
_WORDS = _OF_TENSORS | {
    "async": "with async_op=True",
    "subgroup": "in a group that lacks ranks",
    "uneven": "with tensors of several lengths",
    "root": "with another root than rank 0",
    "tag": "with tags",
    "any_source": "from any source",
}
# What a question asks that does not say: the traits of the plainest one.
_PLAIN = {"dtype": "float32", "op": "SUM", "variant": "", "elements": 5, "data": "exact"}
_CONDITIONS = ("dtype", "op", "variant", "elements", "data", "members", "ranks", "fate", "case")


@dataclass
class Cause:
    """`answers` show it, the smallest first. `conditions` hold for all of them, and for no right
    answer about the same calls."""

    state: str
    section: str
    answers: list[Answer]
    conditions: dict[str, Any] = field(default_factory=dict)
    also: int = 0  # answers to later questions that it explains, too
    note: str = ""

    @property
    def smallest(self) -> Answer:
        return self.answers[0]

    @property
    def calls(self) -> list[str]:
        return list(dict.fromkeys(answer.question.call for answer in self.answers))

    @property
    def place(self) -> str:
        return self.smallest.place

    def __str__(self) -> str:
        verb = {"wrong": "wrong", "hangs": "hangs", "crashes": "crashes"}[self.state]
        text = f"{', '.join(self.calls)}: {verb}"
        if words := _condition_words(self.conditions):
            text += f" {words}"
        first = self.smallest
        if self.section == "group":
            return f"The group is not what torch has passed to it: {first.detail}"
        text += f". {first.question}: {first.detail.removeprefix('Mismatch: ')}"
        if self.place and self.place not in text and " grew " not in text:
            text += f" [{self.place}]"
        return text + self.note


def traits_of(question: Question) -> dict[str, Any]:
    return _PLAIN | {"ranks": question.ranks} | dict(question.traits)


def causes_of(answers: Iterable[Answer]) -> list[Cause]:
    answers = list(answers)
    all_causes: list[Cause] = []
    for section in SECTIONS:
        asked = [answer for answer in answers if answer.question.section == section]
        new: dict[tuple[Any, ...], list[Answer]] = {}
        for answer in sorted(asked, key=_size):
            if answer.is_fault:
                new.setdefault(_key(answer), []).append(answer)
        if section == "lessons" and all_causes:  # programs only show again what is known
            all_causes[0].also += sum(map(len, new.values()))
            continue
        causes: list[Cause] = []
        for group in new.values():
            if rest := _not_explained([*all_causes, *causes], group):
                causes += _causes(rest, asked)
        all_causes += _merged(causes)
    for cause in all_causes:
        cause.note = _note(cause)
    return all_causes


def _not_explained(causes: list[Cause], answers: list[Answer]) -> list[Answer]:
    rest = []
    for answer in answers:
        known = next((cause for cause in causes if _explains(cause, answer)), None)
        if known is None:
            rest.append(answer)
        else:
            known.also += 1
    return rest


def _key(answer: Answer) -> tuple[Any, ...]:
    question, traits = answer.question, traits_of(answer.question)
    variant = traits["variant"] if question.section in ("calls", "sizes") else ""
    if variant in _OF_TENSORS:
        return answer.state, variant
    if answer.state in ("hangs", "crashes") and answer.place:
        return answer.state, answer.place
    if question.section == "at once":
        return answer.state, traits.get("case"), answer.place
    return answer.state, answer.place or question.call, variant


def _causes(group: list[Answer], asked: list[Answer]) -> list[Cause]:
    """One cause, if nothing is right under its conditions; else one for each reduction."""
    cause = _cause(group, asked)
    right = [answer for answer in asked if answer.state == "works"]
    by_op: dict[Any, list[Answer]] = {}
    for answer in group:
        by_op.setdefault(traits_of(answer.question)["op"], []).append(answer)
    if len(by_op) == 1 or not _covers(cause, right):
        return [cause]
    return _joined([_cause(some, asked) for some in by_op.values()], asked)


def _joined(causes: list[Cause], asked: list[Answer]) -> list[Cause]:
    """One cause for several of the same calls, where nothing that is right lies between them."""
    right = [answer for answer in asked if answer.state == "works"]
    found: list[Cause] = []
    for cause in causes:
        for at, known in enumerate(found):
            both = _cause(known.answers + cause.answers, asked)
            if known.calls == cause.calls and not _covers(both, right):
                found[at] = both
                break
        else:
            found.append(cause)
    return found


def _covers(cause: Cause, right: list[Answer]) -> bool:
    """Whether one of these right answers would be wrong by this cause."""
    ranks = cause.conditions.get("ranks")
    return any(
        _explains(cause, answer) for answer in right if not ranks or answer.question.ranks in ranks
    )


def _cause(group: list[Answer], asked: list[Answer]) -> Cause:
    group = sorted(group, key=_size)
    first = group[0]
    cause = Cause(first.state, first.question.section, group)
    calls = set(cause.calls)
    right = [
        traits_of(answer.question)
        for answer in asked
        if answer.question.call in calls and answer.state == "works"
    ]
    wrong = [traits_of(answer.question) for answer in group]
    variants, ranks = ({traits[name] for traits in wrong} for name in ("variant", "ranks"))
    for name in _CONDITIONS:
        values = {traits.get(name) for traits in wrong}
        alike = [
            traits
            for traits in right
            if (name == "variant" or traits["variant"] in variants)
            and (name == "ranks" or traits["ranks"] in ranks)
        ]
        others = {traits.get(name) for traits in alike} - values
        if not others or None in values:
            continue
        if (name == "elements") != (cause.section == "sizes") and name in ("elements", "data"):
            continue
        if name == "elements":
            lengths, right_ones = (
                [length for length in some if length] for some in (values, others)
            )
            if lengths and min(lengths) > max(right_ones, default=0):
                cause.conditions[name] = min(lengths)
            elif len(values) <= 2:
                cause.conditions[name] = tuple(sorted(values, key=str))
        elif len(values) < 5 or name in ("variant", "dtype"):
            cause.conditions[name] = tuple(sorted(values, key=str))
    return cause


def _size(answer: Answer) -> tuple[Any, ...]:
    """The smallest question is the first: few ranks, few elements, the plainest kind."""
    traits = traits_of(answer.question)
    is_odd = traits["dtype"] not in ("float32", None)
    elements = traits["elements"] or 10
    return (
        "no meaning" in answer.detail,
        "." in answer.question.call or "coalesc" in answer.question.call,
        bool(traits["variant"]),
        traits.get("case") != at_once.NOT_EARLY,  # it says why results of other cases are wrong
        elements,
        answer.question.ranks,
        is_odd,
    )


def _merged(causes: list[Cause]) -> list[Cause]:
    """One cause for all places or calls that do the same wrong under the same conditions.

    What only the conditions tell apart stays apart.
    """
    merged: dict[tuple[Any, ...], Cause] = {}
    for number, cause in enumerate(causes):
        conditions = tuple(sorted((*pair,) for pair in cause.conditions.items() if pair[0] != "op"))
        is_one_place = cause.place and cause.section != "failure"
        key: tuple[Any, ...] = (cause.state, cause.place) if is_one_place else (number,)
        if not cause.place and (conditions or cause.section == "failure"):
            key = cause.state, conditions
        elif cause.place:
            key = cause.state, cause.place, conditions
        if key in merged:
            known = merged[key]
            known.answers = sorted(known.answers + cause.answers, key=_size)
            if "op" in known.conditions and "op" in cause.conditions:
                ops = {*known.conditions["op"], *cause.conditions["op"]}
                known.conditions["op"] = tuple(sorted(ops))
            else:
                known.conditions.pop("op", None)
        else:
            merged[key] = cause
    return list(merged.values())


def _explains(cause: Cause, answer: Answer) -> bool:
    """Whether the answer is wrong under the cause's conditions, in its calls or at its place."""
    if cause.section == "group":
        return True
    if answer.question.call not in cause.calls and (not cause.place or cause.place != answer.place):
        return False
    traits = traits_of(answer.question)
    for name, wanted in cause.conditions.items():
        got = traits.get(name)
        if name == "elements":
            exactly = isinstance(wanted, tuple)
            if got is None or (got not in wanted if exactly else got < wanted):
                return False
        elif name in ("ranks", "fate", "case"):
            continue
        elif got not in wanted and not (name == "variant" and "" in wanted):
            return False
    return True


def _condition_words(conditions: dict[str, Any]) -> str:
    words = []
    for name, value in conditions.items():
        if name == "elements":
            exactly = isinstance(value, tuple)
            some = " and ".join(f"{length:,}" for length in value) if exactly else f"{value:,}"
            words.append(f"at {some} elements" if exactly else f"from {some} elements on")
        elif name == "variant":
            words += [_WORDS.get(variant, variant) for variant in value if variant][:3]
        elif name == "data":
            kinds = {
                "wide": "with values that need all bits of the dtype",
                "special": "with nan, inf, -0.0 or subnormals",
                "rounded": "beyond rounding",
            }
            words += [kinds[kind] for kind in value if kind in kinds]
        elif name == "members":
            words += [f"in the group {list(members)}" for members in value if members]
        elif name == "ranks":
            words.append(f"on {', '.join(map(str, value))} ranks")
        elif name in ("fate", "case"):
            words.append(f"if a rank {', '.join(value)}" if name == "fate" else "")
        else:
            words.append(f"with {', '.join(map(str, value))}")
    return ", ".join(word for word in words if word)


def _note(cause: Cause) -> str:
    """Whether gloo, to which many backends hand their calls, is claimed to do the same."""
    cell = cause.smallest.question.program
    if not isinstance(cell, Cell) or cell.device != "cpu":
        return ""
    import importlib.metadata

    variant = cell.form.partition(":")[2]
    form = cell.name if variant == "offset" else cell.form
    same = Cell(cell.collective, form, "gloo", "cpu", cell.dtype, cell.op, cell.world_size)
    claim = claims.expected(same, importlib.metadata.version("torch"))
    if claim is None or claim.state != cause.state:
        return ""
    return f". gloo does so, too: {claim.reason}" if cell.backend != "gloo" else ". This is claimed"
