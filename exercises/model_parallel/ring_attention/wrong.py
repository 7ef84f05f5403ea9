"""What learners really write: changes of the solution, and what they must be told."""

WRONG = [
    (
        "result * (log_sum - total).exp() + new * (new_log_sum - total).exp()",
        "result + new",
        "every rank: it adds the results of the blocks without weights.",
    ),
    (
        "result * (log_sum - total).exp() + new * (new_log_sum - total).exp()",
        "(result + new) / 2",
        "every rank: it takes the mean of the blocks: their weights differ.",
    ),
    (
        "    return result",
        "    return attend(query, key, value)[0]",
        "every rank: the result comes from this rank's keys alone.",
    ),
    (
        "        total = torch.logaddexp(log_sum, new_log_sum)\n",
        "        total = (log_sum.exp() + new_log_sum.exp()).log()\n",
        "large scores, run 4: every rank: `exp` of a large log_sum is infinite: subtract first.",
    ),
    ("        log_sum = total\n", "", "the result is wrong. The last right case: 2 ranks, 50"),
    ("range(n - 1)", "range(n)", "every rank: this rank's own block counts twice."),
]
