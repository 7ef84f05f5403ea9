"""The page of messages, docs/messages.md, from messages.toml."""

import re

from collectives.diagnosis.log.messages import LogMessage, table

_TORCH = "https://github.com/pytorch/pytorch/blob/v2.13.0/"


# By what a reader sees, in the order of messages.toml.
_CHAPTERS = {
    "start": "At the start: the ranks meet",
    "gloo": "In a call: gloo and the store",
    "nccl": "In a call: NCCL and CUDA",
    "model": "In the model: DDP, FSDP, DTensor, DeepSpeed",
    "machine": "From the machine: memory, files, DataLoader",
    "launcher": "From the launcher: torchrun, Slurm, Ray, engines",
    "end": "At the end",
}


def entries() -> str:
    by_chapter = {
        title: [message for message in table() if message.seen == seen]
        for seen, title in _CHAPTERS.items()
    }
    parts = [_contents(by_chapter)]
    for title, messages in by_chapter.items():
        parts += [f"## {title}", *map(_entry, messages)]
    return "\n\n".join(parts)


def _contents(by_chapter: dict[str, list[LogMessage]]) -> str:
    lines = []
    for title, messages in by_chapter.items():
        lines += [f"- [{title}](#{_anchor(title)})"]
        lines += [f"  - [{_code(one.message)}](#{_anchor(one.message)})" for one in messages]
    return "\n".join(lines)


def _anchor(heading: str) -> str:
    """The name that a code host gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip()).lower().replace(" ", "-")


def _code(text: str) -> str:
    return f"`{text.strip()}`"


def _entry(message: LogMessage) -> str:
    also = f"Also: {', '.join(map(_code, message.also))}." if message.also else ""
    parts = [
        f"### {_code(message.message)}",
        *([also] if also else []),
        message.means,
        f"**Which rank?** {message.rank}",
        f"**What to do.** {message.cure}",
        f"**More:** the lesson [{message.lesson}](../notebooks/{message.lesson}.ipynb).",
        _program(message) if message.program else f"**Source:** {_source(message.source)}.",
    ]
    return "\n\n".join(parts)


def _program(message: LogMessage) -> str:
    variables = "".join(f"{name}={value} " for name, value in message.env.items())
    command = f"{variables}torchrun --nproc-per-node {message.ranks} program.py"
    return f"Run it yourself, by `{command}`:\n\n```python\n{message.program.strip()}\n```"


def _source(source: str) -> str:
    url = source if source.startswith("https:") else _TORCH + source
    # The address of a folder ends with a slash, and is named after what stands before it.
    return f"[{source.rstrip('/').rpartition('/')[2]}]({url})"
