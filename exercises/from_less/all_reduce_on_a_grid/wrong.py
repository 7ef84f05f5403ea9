"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

WRONG = {
    "it adds up in the row alone": {
        "kind": "the example",
        "change": ("    dist.all_reduce(piece, group=columns[column])\n", ""),
        "says": "every rank: the result is wrong.",
    },
    "the whole tensor travels along the column": {
        "kind": "what is counted",
        "change": (
            "    dist.reduce_scatter_single(piece, x, group=rows[row])\n    dist.all_reduce(piece, group=columns[column])\n    dist.all_gather_single(x, piece, group=rows[row])\n",
            "    dist.all_reduce(x, group=rows[row])\n    dist.all_reduce(x, group=columns[column])\n",
        ),
        "says": "every rank: it gave 64 bytes to all_reduce; 16 are enough.",
    },
    "it adds and sends in float32": {
        "kind": "numbers too large for float32",
        "around": """\
def hierarchical_all_reduce(x, width):
    short = x.float()
    right(short, width)
    x.copy_(short)
""",
        "says": "the result is wrong.",
    },
    "it sends whole numbers": {
        "kind": "fractions",
        "around": """\
def hierarchical_all_reduce(x, width):
    whole = x.nan_to_num().long()
    right(whole, width)
    x.copy_(whole)
""",
        "says": "the result is wrong.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = {}


def hierarchical_all_reduce(x, width):
    if width not in KEPT:
        right(x, width)
        KEPT[width] = x.clone()
    x.copy_(KEPT[width][: len(x)])
""",
        "says": "the result is wrong.",
    },
    "rows of two": {
        "kind": "another grid",
        "change": ("divmod(dist.get_rank(), width)", "divmod(dist.get_rank(), 2)"),
        "says": "raised IndexError: list index out of range",
    },
    "the piece travels to all ranks": {
        "kind": "what the text demands",
        "around": """\
def hierarchical_all_reduce(x, width):
    ranks = list(range(dist.get_world_size()))
    mine = dist.get_rank() // width
    rows = [dist.new_group(ranks[first : first + width]) for first in ranks[::width]]
    piece = x.new_zeros(width, len(x) // width)
    dist.reduce_scatter_single(piece[dist.get_rank() % width], x, group=rows[mine])
    for one in piece:
        dist.all_reduce(one)
    x.copy_(piece.flatten())
""",
        "says": "it gave 32 bytes to all_reduce; 16 are enough. The task says: only a piece",
    },
}
