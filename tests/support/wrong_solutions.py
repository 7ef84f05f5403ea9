"""What learners really write: changes of our solutions, each with words that they must be told.

The kinds: an ignored root, off by one, wrong for n that is not a power of two, the last element
lost, a deadlock, a message left behind, too much sent, an input overwritten, a forbidden call.
"""

# What most of them are told.
ALL_WRONG = "every rank: the result is wrong."
HANGS = "it hangs: after 3 s the ranks still wait."
TO_ITSELF = "itself, which a rank cannot do"

WRONG = {
    "neighbours": [
        ("(rank - 1) % n, ", "rank - 1, ", "rank 0: the result is wrong."),
        ("(rank + 1) % n", "rank + 1", "rank 1: the result is wrong."),
    ],
    "shift_right": [
        ("work = dist.isend(x, (rank + 1) % n)", "dist.send(x, (rank + 1) % n)", HANGS),
        ("return received", "return x.copy_(received)", "`x` was changed"),
        ("    if n == 1:\n        return x.clone()\n", "", TO_ITSELF),
        (
            "return received",
            "return received.float()",
            "the result is of type torch.float32, not torch.int64",
        ),
        ("    work.wait()\n    return received\n", "    work.wait()\n", "it returned nothing"),
        ("    work.wait()\n", "", "it does not wait for its isend: call `wait()` of the Work"),
    ],
    "exchange_in_pairs": [
        ("return received", "return x", ALL_WRONG),
        ("    dist.recv(received, peer)\n", "", HANGS),
    ],
    "running_total": [
        ("total += before", "total = before", "rank 1: the result is wrong."),
        ("rank < n - 1", "rank < n", "it sends to rank 2: the last rank is 1"),
        ("dist.send(total", "dist.send(x", "The last right case: 2 ranks, run 2."),
        ("total = x.clone()", "total = x", "`x` was changed"),
    ],
    "weighted_mean": [
        ("sums[0] / sums[1]", "sums[0] / dist.get_world_size()", ALL_WRONG),
        (
            "dist.all_reduce(sums)",
            "dist.reduce(sums, 0)",
            "it calls dist.reduce: write `weighted_mean` with all_reduce alone.",
        ),
    ],
    "accuracy_over_unequal_shards": [
        ("counts[1].double()", "len(labels)", ALL_WRONG),
        (".item()", "", "it returned a Tensor, not a float."),
    ],
    "texts_as_padded_bytes": [
        ("row[:length]", "row", ALL_WRONG),
        (
            "text.encode()",
            "text.encode('ascii')",
            "raised UnicodeEncodeError: 'ascii' codec can't encode characters in",
        ),
    ],
    "repair_the_dtype": [
        ("src=root", "src=0", "the result is wrong. The last right case: 2 ranks, root 0."),
        ("(x, src=root)", "(x.long(), src=root)", "rank 1: the result is wrong."),
    ],
    "which_calls": [
        ("src=dist.get_world_size() - 1", "src=0", ALL_WRONG),
        (
            "dist.reduce_scatter_tensor(c, x)",
            "total = x.clone(); dist.all_reduce(total); dist.barrier(); c = total[[dist.get_rank()]]",
            "it made 4 calls; 3 are enough",
        ),
    ],
    "repair_the_order": [
        (
            "    dist.broadcast(shared, src=0)\n",
            "    if dist.get_rank() == 0:\n        dist.broadcast(shared, src=0)\n",
            HANGS,
        ),
        ("src=0", "src=dist.get_world_size() - 1", ALL_WRONG),
        (
            "return shared.item(), total.item()",
            "return shared, total",
            "every rank: it returned (a Tensor, a Tensor), not (a float, an int).",
        ),
    ],
    "repair_the_groups": [
        (
            "range(dist.get_world_size() - 1)",
            "reversed(range(dist.get_world_size() - 1))",
            "rank 1: the result is wrong.",
        ),
        (", group=pair", "", "3 ranks, run 1"),
    ],
    "overlap": [
        (
            "works.append(dist.all_reduce(gradient, async_op=True))",
            "dist.all_reduce(gradient)",
            "2 ranks, run 1: it hangs: after 3 s the ranks still wait.",
        ),
        (
            "sums.append(gradient)",
            "sums.append(gradient.clone())",
            "the result is wrong.",  # on a rank that copied before the sum was there
        ),
        (
            "    for work in works:\n        work.wait()\n",
            "    works[-1].wait()\n",
            "every rank: it does not wait for its all_reduce",
        ),
        (
            "for gradient in gradients",
            "for gradient in list(gradients)",
            "it asks for tensor 2 before it starts the all_reduce of tensor 1",
        ),
    ],
    "weights_in_one_call": [
        (
            "        weight.copy_(piece.view_as(weight))\n",
            "        weight = piece\n",
            "the result is wrong.",
        ),
        ("src=trainer", "src=0", "the result is wrong. The last right case: 2 ranks, trainer 0."),
    ],
    "one_after_another": [
        ("        dist.barrier()\n", "", ALL_WRONG),
        (
            "            spoken = speak()\n        dist.barrier()\n",
            "            dist.barrier()\n            spoken = speak()\n",
            ALL_WRONG,
        ),
    ],
    "reduce_scatter_from_reduces": [
        ("piece.clone()", "piece", "`pieces` was changed"),
        ("dst=root", "dst=0", "the result is wrong."),
    ],
    "one_call_per_step": [
        (
            "range(0, len(gradients), every)",
            "range(0, len(gradients) - every + 1, every)",
            ALL_WRONG,
        ),
        (
            "        total = torch.stack(gradients[first : first + every]).sum(0)\n        dist.all_reduce(total)\n",
            "        total = 0\n        for gradient in gradients[first : first + every]:\n"
            "            one = gradient.clone()\n            dist.all_reduce(one)\n            total = total + one\n",
            "every rank: it made 3 calls; 2 are enough.",
        ),
    ],
    "a_checkpoint": [
        ('["momentum"]', '["momentum"] * 0', ALL_WRONG),
        ('        self.generator.set_state(state["generator"])\n', "", ALL_WRONG),
        ('        self.steps = state["steps"]\n', "", ALL_WRONG),
        ("self.generator.get_state()", "self.generator.initial_seed()", "raised TypeError"),
    ],
    "broadcast_from_sends": [
        ("dist.recv(x, src)", "dist.recv(x.clone(), src)", "rank 1: the result is wrong."),
        ("rank != src", "True", TO_ITSELF),
    ],
    "broadcast_as_a_tree": [
        ("place < distance and place + distance < n", "place < distance", HANGS),
        ("(dist.get_rank() - src) % n", "dist.get_rank()", TO_ITSELF),
        ("distance *= 2", "distance += 1", "it sent 3 messages; 2 are enough."),
    ],
    "scatter_from_sends": [
        (
            "output.copy_(piece)",
            "output.copy_(pieces[0])",
            "rank 1: the result is wrong. The last right case: 2 ranks, src 0, 1000",
        ),
        ("output.copy_(piece)", "pass", "rank 0: the result is wrong."),
    ],
    "gather_from_sends": [
        ("x.clone() for", "x for", "`x` was changed"),
        ("        dist.send(x, dst)", "        dist.send(x, 0)", TO_ITSELF),
        ("rank != me", "rank > me", "The last right case: 2 ranks, dst 0, 1000"),
    ],
    "reduce_on_any_root": [
        ("total, received = x.clone()", "total, received = x", "`x` was changed"),
        ("total += received", "total = received", "rank 0: the result is wrong."),
        ("rank != me", "rank != 0", TO_ITSELF),
    ],
    "all_gather_as_a_ring": [
        ("range(n - 1)", "range(n)", "it sent 2 messages; 1 is enough."),
        ("rows[(rank - step) % n]", "rows[rank]", "The last right case: 2 ranks, 1000 elements,"),
        ("rows[(rank - step) % n], ", "rows, ", "On gloo a message that has more bytes"),
        (
            "dist.isend(rows[(rank - step) % n], (rank + 1) % n)\n        dist.recv(rows[(rank - step - 1) % n], (rank - 1) % n)\n        work.wait()",
            "dist.isend(rows.clone(), (rank + 1) % n)\n        whole = torch.empty_like(rows)\n        dist.recv(whole, (rank - 1) % n)\n        work.wait()\n        rows[(rank - step - 1) % n] = whole[(rank - step - 1) % n]",
            "it sent 32 bytes; 16 are enough",
        ),
    ],
    "all_reduce_from_two_calls": [
        ("    dist.broadcast(x, src=0)\n", "", "rank 1: the result is wrong."),
        (
            "dist.reduce(x, dst=0)",
            "dist.all_reduce(x)",
            "it calls dist.all_reduce: write `all_reduce` with reduce,",
        ),
    ],
    "all_reduce_from_its_halves": [
        (
            "-(-len(x) // n) * n",
            "len(x) // n * n",
            "raised RuntimeError: The expanded size of the tensor (2) must match",
        ),
        ("    x.copy_(padded[: len(x)])\n", "", ALL_WRONG),
    ],
    "all_reduce_as_a_ring": [
        ("2 * (n - 1)", "2 * n - 3", ALL_WRONG),
        (
            "x.tensor_split(n)",
            "x[: len(x) // n * n].tensor_split(n)",
            "every rank: the result is wrong. The last right case: 2 ranks, 4 elements,",
        ),
        ("dist.isend(mine, (rank + 1) % n)", "dist.isend(mine.clone(), (rank + 2) % n)", TO_ITSELF),
    ],
    "all_to_all_pairwise": [
        ("received[left]", "received[right]", "The last right case: 2 ranks, 1000 elements,"),
        ("range(1, n)", "range(n)", TO_ITSELF),
        ("(rank - distance) % n", "(rank + distance) % n", HANGS),
    ],
    "a_scan": [
        ("below + x", "x", "the result is wrong. The last right case: 2 ranks, 1000 elements,"),
        ("return below", "return below + x", ALL_WRONG),
    ],
    "sub_groups": [
        (", group=group", "", ALL_WRONG),
        ("total = x.clone()", "total = x", "`x` was changed"),
    ],
    "average_the_gradients": [
        ("        gradient /= dist.get_world_size()\n", "", ALL_WRONG),
        ("for gradient in gradients", "for gradient in gradients[:-1]", ALL_WRONG),
    ],
    "one_bucket": [
        ("        gradient.copy_(piece.view_as(gradient))", "        gradient = piece", ALL_WRONG),
        (
            "    dist.all_reduce(bucket)\n",
            "    for part in bucket.split(1):\n        dist.all_reduce(part)\n",
            "it made 6 calls; 1 is enough",
        ),
    ],
    "shards_with_a_remainder": [
        ("min(rank, longer)", "rank", "rank 1: the result is wrong."),
        (" + (rank < longer)", "", "the result is wrong. The last right case: 2 ranks, 2 samples."),
    ],
    "accuracy_of_padded_shards": [
        ("counted.sum().item() / samples", "right.float().mean().item()", ALL_WRONG),
        ("op=dist.ReduceOp.MAX", "op=dist.ReduceOp.SUM", ALL_WRONG),
    ],
    "the_last_micro_batches": [
        (" or i == last", "", ALL_WRONG),
        ("(i + 1) % every", "i % every", ALL_WRONG),
    ],
    "one_data_set": [
        ("    dist.broadcast(shared, src=0)\n", "", "rank 1: the result is wrong."),
        ("src=0", "src=dist.get_world_size() - 1", ALL_WRONG),
    ],
    "norm_of_sharded_gradients": [
        ("gradient.square().sum()", "gradient.norm()", ALL_WRONG),
        ("    dist.all_reduce(squares)\n", "", ALL_WRONG),
    ],
    "left_first": [
        (
            "return from_left, from_right",
            "return from_right, from_left",
            "every rank: the result is wrong. The last right case: 2 ranks, run 2.",
        ),
        ("dist.isend(x, right)]", "dist.isend(x, left)]", HANGS),
    ],
    "only_rank_0_logs": [
        (
            "        dist.all_reduce(mean)\n        if dist.get_rank() == 0:\n",
            "        if dist.get_rank() == 0:\n            dist.all_reduce(mean)\n",
            "still waits for another rank, which has ended its calls.",
        ),
        (
            "        if dist.get_rank() == 0:\n            log",
            "        log",
            "rank 1: the result is wrong.",
        ),
    ],
    "early_stop": [
        (", op=dist.ReduceOp.MAX", "", ALL_WRONG),
        ("largest < limit", "loss < limit", "rank 1: the result is wrong."),
    ],
    "the_same_buffer": [
        ("range(tensors)", "range(tensors - 1)", "rank 1: the result is wrong."),
        (
            "    for tensor in received:\n        dist.recv(tensor, 0)\n",
            "    for tensor in received[:2]:\n        dist.recv(tensor, 0)\n",
            "rank 1: the result is wrong.",
        ),
    ],
    "a_dictionary": [
        ("in sorted(totals)", "in totals", ALL_WRONG),
        ("return list(totals.items())", "return sorted(totals.items())", "the result is wrong."),
    ],
    "whose_message": [
        (
            "dist.recv(pieces[rank], rank)",
            "dist.recv(pieces[rank])",
            "rank 0: the result is wrong. The last right case: 2 ranks, run 3.",
        ),
        ("range(1, len(pieces))", "range(2, len(pieces))", "rank 0: the result is wrong."),
    ],
    "a_column": [
        ("    matrix[:, 0] = column\n", "", "rank 1: the result is wrong."),
        ("matrix[:, 0] = column", "matrix.copy_(column[:, None])", ALL_WRONG),
    ],
    "rank_in_a_group": [
        ("src=1", "src=0", "raised ValueError: Global rank 0 is not part of group"),
        ("range(1, dist", "range(0, dist", ALL_WRONG),
    ],
    "broadcast_from_all_reduce": [
        ("        x.zero_()\n", "        pass\n", ALL_WRONG),
        ("!= src", "!= 0", "the result is wrong. The last right case: 2 ranks, src 0, 1000"),
    ],
    "all_gather_from_broadcasts": [
        ("src=root", "src=0", ALL_WRONG),
        ("    pieces[dist.get_rank()].copy_(x)\n", "", ALL_WRONG),
    ],
    "all_to_all_from_scatter": [
        ("received[root]", "received[0]", ALL_WRONG),
        ("src=root", "src=0", "raised ValueError: Argument ``scatter_list`` must"),
    ],
    "slowest_rank": [
        (" * n + rank", "", "rank 0: the result is wrong."),
        (", op=dist.ReduceOp.MAX", "", "rank 0: the result is wrong."),
    ],
    "median_in_parts": [
        ("x.split(size)", "x.split(size)[:1]", "rank 0: the result is wrong."),
        (".values", ".indices", "rank 0: the result is wrong."),
    ],
    "squares_on_all_ranks": [
        ("dst=root", "dst=0", "raised ValueError: Argument ``gather_list`` must"),
        ("dist.gather(x.square()", "dist.gather(x", "rank 0: the result is wrong."),
    ],
    "all_reduce_on_a_grid": [
        ("    dist.all_reduce(piece, group=columns[column])\n", "", ALL_WRONG),
        (
            "    dist.reduce_scatter_tensor(piece, x, group=rows[row])\n    dist.all_reduce(piece, group=columns[column])\n"
            "    dist.all_gather_into_tensor(x, piece, group=rows[row])\n",
            "    dist.all_reduce(x, group=rows[row])\n    dist.all_reduce(x, group=columns[column])\n",
            "every rank: it gave 64 bytes to all_reduce; 16 are enough.",
        ),
    ],
    "barrier_by_dissemination": [
        ("distance *= 2", "distance += 1", "it sent 3 messages; 2 are enough."),
        ("while distance < n", "while distance < n // 2", ALL_WRONG),
    ],
    "weights_are_equal": [
        ("MAX", "MIN", "the result is wrong. The last right case: 2 ranks, equal weights."),
        (
            "torch.equal(lowest, highest)",
            "torch.equal(weights, highest)",
            "rank 1: the result is wrong. The last right case: 2 ranks, equal weights.",
        ),
    ],
    "zero_step": [
        ("    dist.all_gather_into_tensor(weights, mine)\n", "", "`weights` was not changed."),
        ("gradient / n", "gradient", "every rank: `weights` is wrong."),
        (
            "momentum.copy_(momentum / 2 + mean)",
            "momentum = momentum / 2 + mean",
            "every rank: `momentum` was not changed.",
        ),
        ("gradient / n", "gradient.div_(n)", "`gradient` was changed"),
    ],
    "column_parallel": [
        (
            "    dist.all_reduce(of_x)\n",
            "",
            "every rank: the gradient of `x` comes from this rank's columns alone.",
        ),
        (
            "of_x, x.mT @ gradient",
            "of_x / dist.get_world_size(), x.mT @ gradient",
            "every rank: `gradient of x` is wrong.",
        ),
    ],
    "one_forward_one_backward": [
        ("n - 1 - rank", "n - rank", "rank 0: after F2 it keeps 3 micro-batches; the most is 2."),
        ("n - 1 - rank", "rank", "rank 0: it never keeps 2 micro-batches at a time, and waits"),
        (
            "min(m, n - 1 - rank)",
            "n - 1 - rank",
            "3 ranks, 1 micro-batch: rank 0: there is no pass 'F1': the last ones are F0 and B0.",
        ),
        ("range(m):", "range(m - ahead):", "rank 0: B3 is missing."),
        ('f"B{i}"', 'f"B{m - 1 - i}"', "every rank: B3 comes before F3."),
        ('f"F{ahead + i}"', 'f"F{i}"', "rank 0: it makes F0 twice."),
    ],
    "ring_attention": [
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
    ],
    "tokens_to_experts": [
        (
            "    result[order] = answers\n    return result",
            "    return answers",
            "every rank: the answers are in the order of the experts, not in that of the tokens.",
        ),
        (
            "    result[order] = answers\n    return result",
            "    return answers[order]",
            "`answers[order]` sorts once more: assign to `result[order]`.",
        ),
        ("tokens[order]", "tokens", "every rank: it sends the tokens in their own order"),
        (
            "expert(arrived), sends, receives",
            "expert(arrived), receives, sends",
            "raised RuntimeError: Split sizes doesn't match total dim 0 size",
        ),
        (
            "    dist.all_to_all_single(answers",
            "    if len(arrived):\n        dist.all_to_all_single(answers",
            "all to expert 0, run 2: ",  # It hangs, or the others have ended.
        ),
    ],
}
