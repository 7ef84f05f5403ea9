"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "`row` for `row[:length]`": {
        "kind": "the example",
        "change": ("row[:length]", "row"),
        "says": "every rank: the result is wrong.",
    },
    "`text.encode('ascii')` for `text.encode()`": {
        "kind": "a second call",
        "change": ("text.encode()", "text.encode('ascii')"),
        "says": "raised UnicodeEncodeError: 'ascii' codec can't encode characters in",
    },
    "it strips spaces": {
        "kind": "a text that ends in padding",
        "change": (
            "bytes(row[:length].tolist()).decode()",
            "bytes(row[:length].tolist()).decode().rstrip()",
        ),
        "says": "the result is wrong.",
    },
    "it strips zeros": {
        "kind": "a text that ends in padding",
        "change": (
            "bytes(row[:length].tolist()).decode()",
            'bytes(row.tolist()).decode().rstrip("\\0")',
        ),
        "says": "the result is wrong.",
    },
    "it counts characters, not bytes": {
        "kind": "letters of two bytes",
        "change": ("torch.tensor([len(encoded)])", "torch.tensor([len(text)])"),
        "says": "raised RuntimeError: The expanded size of the tensor",
    },
    "it pads to 8 bytes": {
        "kind": "another length",
        "change": ("max(length.item() for length in lengths)", "8"),
        "says": "raised RuntimeError: The expanded size of the tensor",
    },
    "the length is one byte": {
        "kind": "a text of 300 bytes",
        "around": """\
def gather_texts(text):
    encoded = text.encode()
    padded = bytes([len(encoded) % 256]) + encoded.ljust(400, b"-")
    row = torch.tensor(list(padded), dtype=torch.uint8)
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row)
    return [bytes(one.tolist())[1 : 1 + one[0]].decode() for one in rows]
""",
        "says": "the result is wrong.",
    },
    "one call for objects": {
        "kind": "the example",
        "around": """\
def gather_texts(text):
    texts = [None] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    return texts
""",
        "says": "it calls dist.all_gather_object: write `gather_texts` with all_gather",
    },
    "letters of Europe alone": {
        "kind": "letters of two bytes",
        "around": """\
def gather_texts(text):
    return [one.encode("latin-1", "replace").decode("latin-1") for one in right(text)]
""",
        "says": "the result is wrong.",
    },
}
