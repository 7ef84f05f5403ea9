"""Texts as padded bytes

Every rank has a text. Return the list of all texts, in rank order, on every rank. Tensors carry
numbers, so encode the texts as bytes; all_gather needs tensors of one length, so pad them.

    rank  text     returned
    0     "abc!"   ["abc!", "abc!!"]
    1     "abc!!"  ["abc!", "abc!!"]

You may call all_gather, all_gather_single and all_reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def gather_texts(text: str) -> list[str]:
    raise NotImplementedError("TODO: about nine lines")
