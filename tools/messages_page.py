"""The page of messages, docs/messages.md, from messages.toml."""

import re
from collections.abc import Iterable

from collectives.diagnosis.log.messages import Message, table

_TORCH = "https://github.com/pytorch/pytorch/blob/v2.13.0/"


def entries() -> str:
    messages = table()
    return "\n\n".join(
        [
            _contents(messages),
            "## From runs without a GPU",
            *(_entry(message) for message in messages if message.program),
            "## Of NCCL and CUDA",
            "These need GPUs, and were not run here. The text stands in the file that is named.",
            *(_entry(message) for message in messages if message.source),
        ]
    )


def _contents(messages: Iterable[Message]) -> str:
    return "\n".join(f"- [{_code(one.message)}](#{_anchor(one.message)})" for one in messages)


def _anchor(heading: str) -> str:
    """The name that a code host gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip()).lower().replace(" ", "-")


def _code(text: str) -> str:
    return f"`{text.strip()}`"


def _entry(message: Message) -> str:
    parts = [
        f"### {_code(message.message)}",
        message.means,
        f"**Which rank?** {message.rank}",
        f"**What to do.** {message.cure}",
        f"**More:** the lesson [{message.lesson}](../notebooks/{message.lesson}.ipynb).",
        _program(message) if message.program else f"**Source:** {_source(message.source)}.",
    ]
    return "\n\n".join(parts)


def _program(message: Message) -> str:
    variables = "".join(f"{name}={value} " for name, value in message.env.items())
    command = f"{variables}torchrun --nproc-per-node {message.ranks} program.py"
    return f"Run it yourself, by `{command}`:\n\n```python\n{message.program.strip()}\n```"


def _source(source: str) -> str:
    url = source if source.startswith("https:") else _TORCH + source
    return f"[{source.rpartition('/')[2]}]({url})"
