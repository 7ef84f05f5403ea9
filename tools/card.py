"""The table of the card: each call, who gives, who gets, and in which parameter."""

from collectives.semantics.calls import CALLS, CallSpec, Flow, Layout
from tools.markdown import table

_WHO = {
    Flow.SEND: ("this rank", "its peer"),
    Flow.RECEIVE: ("its peer", "this rank"),
    Flow.FROM_ROOT: ("the root", "every rank"),
    Flow.TO_ROOT: ("every rank", "the root"),
    Flow.ALL_TO_ALL: ("every rank", "every rank"),
}
_WHAT = {
    Layout.ONE: "",
    Layout.LIST: ", a list with one for each rank",
    Layout.CUT: ", with a piece for each rank",
    Layout.SEVERAL: ", a list",
}


def calls() -> str:
    rows = [_row(call) for call in CALLS.values() if call.buffers or call.name == "barrier"]
    return table(["call", "who gives what", "who gets what"], rows)


def _row(call: CallSpec) -> list[str]:
    gives, gets = _WHO[call.flow]
    parts = [f"{gives}{_what(call, call.gives)}", f"{gets}{_what(call, call.gets)}"]
    if call.in_place:
        parts[1] += ", in place"
    if call.reduces:
        parts[1] += ", reduced by `op`"
    arguments = [buffer.parameter for buffer in call.buffers] + [call.peer] * bool(call.peer)
    lesson = f"../notebooks/{call.lesson}.ipynb"
    return [f"[`{call.name}({', '.join(map(str, arguments))})`]({lesson})", *parts]


def _what(call: CallSpec, parameter: str | None) -> str:
    found = [one for one in call.buffers if one.parameter == parameter]
    return f": `{parameter}`{_WHAT[found[0].layout]}" if found else ""
