"""From a stack to the place where a rank stands: the user's line, and what it calls there. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from collectives.diagnosis.attach.stacks import StackFrame, ThreadStack
from collectives.recording.stack import named

_FUNCTIONAL = "torch/distributed/_functional_collectives.py"

# Files in which a public function is a call of torch.distributed.
_CALLS = (
    "torch/distributed/distributed_c10d.py",
    _FUNCTIONAL,
    "torch/distributed/rpc/api.py",
)

# What DDP does inside a line of the user, by the function in its file.
_DDP_FILE = "torch/nn/parallel/distributed.py"
_DDP = {
    "_sync_buffers": "DDP's forward broadcasts its buffers",
    "_sync_module_buffers": "DDP's forward broadcasts its buffers",
    "_rebuild_buckets": "DDP's forward broadcasts the order of its buckets",
    "__init__": "DDP's constructor compares and broadcasts the parameters",
}

# C++ functions that wait for another process, as their names begin, and what that is. The first
# that fits a frame, from the user's line inwards, tells most.
_NATIVE = (
    (r"c10d::Reducer::finalize_backward", "backward: DDP waits for the sum of its gradients"),
    (r"c10d::Reducer::", "DDP's Reducer"),
    (r"c10d::verify_params_across_processes", "DDP's constructor compares the parameters"),
    (r"c10d::broadcast_coalesced", "DDP broadcasts its parameters or buffers"),
    (r"c10d::ProcessGroup\w+::SendWork::wait", "wait() for an isend"),
    (r"c10d::ProcessGroup\w+::RecvWork::wait", "wait() for an irecv"),
    (
        r"c10d::(\w+::)*(\(anonymous namespace\)::)?\w*Work::wait|c10d::.*WorkNCCL::",
        "wait() for a call",
    ),
    (r"c10d::wait_tensor|c10d::.*wait_tensor", "wait for a functional collective"),
    (r"c10d::(Prefix|TCP|File|Hash)Store::", "the store: waits for another rank's key"),
    (r"c10d::ProcessGroup", "a process group"),
    (r"gloo::", "gloo"),
    (r"nccl[A-Z]\w+", "NCCL"),
    (r"(cuda|cu)(Stream|Event|Ctx|Device)Synchronize", "waits for the GPU"),
    (r"P?(MPI_(?!Py)[A-Z]\w+)", None),
)

# Libraries that call torch.distributed by themselves, by a part of their path.
_OWNERS = (
    ("/torch/distributed/fsdp/_fully_shard/", "FSDP2"),
    ("/torch/distributed/fsdp/", "FSDP"),
    ("/torch/distributed/tensor/", "DTensor"),
    ("/torch/distributed/pipelining/", "pipelining"),
    ("/torch/distributed/checkpoint/", "DCP"),
    (f"/{_DDP_FILE}", "DDP"),
)

# C++ functions that wait awake: they sleep and look again, or keep the processor busy.
_POLLS = re.compile(r"c10d::(File|TCP)Store::")
_SPINS = re.compile(r"P?MPI_[A-Z]|nccl[A-Z]|(cuda|cu)(Stream|Event|Ctx|Device)Synchronize")

_LOADER = "torch/utils/data/dataloader.py"
# Arguments that are numbers or words, so that they can be seen; tensors and groups cannot.
_ARGUMENTS = {"src", "dst", "group_src", "group_dst", "tag", "async_op", "rank", "world_size"}
_ARGUMENTS |= {"backend", "init_method", "reduce_op", "reduceOp"}
_NOT_SHOWN = re.compile("token|secret|passw|credential", re.I)
_PLAIN = re.compile(r"""(-?\d+(\.\d+)?|True|False|None|"[^"]{0,24}"|'[^']{0,24}')""")


@dataclass(frozen=True)
class StackPlace:
    """Where a thread stands.

    `call` says what it does there, and `inside` whether it waits for another rank there, as far as
    that can be seen. `way` is how the program came there: its own frames, innermost first.
    `variables` are the plain ones of the user's function. `loads`: it waits for a DataLoader.
    `polls` and `spins`: it waits awake.
    """

    call: str
    inside: bool
    file: str
    line: int
    function: str
    way: tuple[tuple[str, int, str], ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    loads: bool = False
    polls: bool = False
    spins: bool = False


def place(frames: Sequence[StackFrame]) -> StackPlace:
    """Where a stack stands, its frames innermost first."""
    python = [(frame.file, frame.line, frame.function) for frame in frames if not frame.native]
    user = named(python) or (python or [("", 0, "")])[-1]
    end = next(
        (i for i, frame in enumerate(frames) if (frame.file, frame.line, frame.function) == user), 0
    )
    inner = frames[:end]
    call, inside = _what(inner)
    mine = frames[end] if end < len(frames) else None
    return StackPlace(
        call,
        inside,
        *user,
        tuple(frame for frame in python[python.index(user) :] if named([frame])) if python else (),
        _plain({**mine.given, **mine.locals}) if mine else {},
        any(map(_loads, inner)),
        any(frame.native and _POLLS.match(frame.function) for frame in inner),
        any(frame.native and _SPINS.match(frame.function) for frame in inner),
    )


def stands(
    threads: Sequence[ThreadStack], pid: int
) -> tuple[ThreadStack, StackPlace, list[ThreadStack]]:
    """The thread that says where a process stands, its place, and other threads inside a call.

    This is the main thread, unless another one alone is inside a call of torch.distributed.
    """
    main = next((one for one in threads if one.number == pid), threads[0])
    inside = [one for one in threads if place(one.frames).inside]
    best = main if main in inside or not inside else inside[0]
    return best, place(best.frames), [one for one in (main, *inside) if one is not best]


def _what(inner: Sequence[StackFrame]) -> tuple[str, bool]:
    """What goes on in the frames below the user's line; whether that is torch.distributed."""
    outwards = list(reversed(inner))  # the first is what the user's line calls
    owner = next((name for one in outwards for part, name in _OWNERS if part in one.file), "")
    for before, one in zip([None, *outwards], outwards, strict=False):
        if one.file.endswith(_CALLS) and re.fullmatch(r"[a-z]\w*", one.function):
            text = f"{one.function}({_arguments(one, before)})"
            return (f"{text} of {owner}" if owner else text), True
    for one in outwards:
        if one.file.endswith(_DDP_FILE) and (what := _DDP.get(one.function.rpartition(".")[2])):
            return what, any(map(_waits, inner))
    if any(one.file.endswith(_FUNCTIONAL) for one in outwards):  # a tensor that waits by itself
        return "wait() for a functional collective" + (f" of {owner}" if owner else ""), True
    for one in outwards:
        if what := _waits(one):
            return (f"{what} ({owner})" if owner and owner not in what else what), True
    return _other(outwards), False


def _waits(frame: StackFrame) -> str | None:
    """What a native frame waits for, if that is another process or the GPU."""
    if not frame.native:
        return None
    for pattern, what in _NATIVE:
        if found := re.match(pattern, frame.function):
            return what or found[1] + "()"
    return None


def _loads(frame: StackFrame) -> bool:
    return frame.file.endswith(_LOADER) and frame.function.endswith(("_next_data", "_get_data"))


def _other(outwards: Sequence[StackFrame]) -> str:
    if any(map(_loads, outwards)):
        return "waits for its DataLoader"
    if any(one.function == "_engine_run_backward" for one in outwards):
        return "backward (C++)"
    python = [one for one in outwards if not one.native]
    if python:
        return f"in {python[0].function}()"
    return "outside torch.distributed"


def _arguments(frame: StackFrame, wrapper: StackFrame | None) -> str:
    """The arguments of a call that can be seen: numbers and words, and whether a group is given."""
    words = [
        f"{name}={text}"
        for name, text in frame.given.items()
        if name in _ARGUMENTS and text not in ("None", "False") and (name, text) != ("tag", "0")
    ]
    words += (
        [f"ranks={frame.given['ranks']}"] if frame.given.get("ranks", "None")[0] in "[(" else []
    )
    given = wrapper.locals.get("kwargs", "") if wrapper and "wrapper" in wrapper.function else ""
    words += ["group=..."] if re.search(r"""["']group["']: <""", given) else []
    return ", ".join(words)


def _plain(variables: dict[str, str]) -> dict[str, str]:
    return {
        name: text
        for name, text in variables.items()
        if _PLAIN.fullmatch(text) and not _NOT_SHOWN.search(name)
    }
