"""What learners really write: by name the change, the kind of case that refutes it, and what they are told."""

from around import in_float32, in_whole_numbers, keeps_the_first

WRONG = {
    "`rows.flatten()` for `torch.cat([part.flatten() for part in parts])`": {
        "kind": "the example",
        "change": ("torch.cat([part.flatten() for part in parts])", "rows.flatten()"),
        "says": "it sends rows as they lie in memory: cut them first.",
    },
    "`arrived.view(width, shape[0]).mT` for `arrived.view(shape[0], width)`": {
        "kind": "the example",
        "change": ("arrived.view(shape[0], width)", "arrived.view(width, shape[0]).mT"),
        "says": "the result is wrong.",
    },
    "`bucket, sends, receives` for `bucket, receives, sends`": {
        "kind": "another length",
        "change": ("bucket, receives, sends", "bucket, sends, receives"),
        "says": "raised RuntimeError: Split sizes doesn't match total dim 0 size",
    },
    "`length // n` for `-(-length // n)`": {
        "kind": "the example",
        "change": ("-(-length // n)", "length // n"),
        "says": "raised RuntimeError: split_with_sizes expects split_sizes to sum exactly to",
    },
    "`min(most, length - rank * most)` for `max(0, min(most, length - rank * most))`": {
        "kind": "more than two ranks",
        "change": ("max(0, min(most, length - rank * most))", "min(most, length - rank * most)"),
        "says": "raised RuntimeError: split_with_sizes expects split_sizes have only non-negative",
    },
    "it computes with whole numbers": in_whole_numbers("rows_to_columns(rows, shape)"),
    "it computes in float32": in_float32("rows_to_columns(rows, shape)"),
    "it keeps the first result": keeps_the_first("rows_to_columns(rows, shape)"),
    "all rows go to all ranks": {
        "kind": "what is counted",
        "around": """\
def rows_to_columns(rows, shape):
    rank, n = dist.get_rank(), dist.get_world_size()
    heights, widths = lengths(shape[0], n), lengths(shape[1], n)
    whole = rows.new_empty(shape)
    sizes = [height * shape[1] for height in heights]
    dist.all_to_all_single(whole.view(-1), rows.flatten().repeat(n), sizes, [rows.numel()] * n)
    return whole.split(widths, dim=1)[rank].clone()
""",
        "says": "48 are enough. The task says: no rank may send what",
    },
}
