"""Faults by somebody who had not read faults.py: a test appends this file to a copy of it.

What a sound engine does otherwise stands behind each name. The trainer must say what comes of it.
"""

# ruff: noqa: F821 (in_ranks and the rest are names of faults.py)
# mypy: ignore-errors
import itertools
import threading


@in_ranks
def one_rank_keeps_its_weights(rank):
    """takes nothing on its rank 1"""
    load = rank.load
    rank.load = lambda tensors: load(tensors if rank.number == 0 else [])


def answer_with(rank, weights, answer, *args):
    """An answer for which the rank has other weights."""
    kept, rank.weights = rank.weights, weights
    try:
        return answer(*args)
    finally:
        rank.weights = kept


@in_ranks
def hashes_what_came(rank):
    """answers with the weights of its start, and hashes the new ones"""
    first, answer = dict(rank.weights), rank.answer
    rank.answer = lambda *args: answer_with(rank, first, answer, *args)


@in_ranks
def decodes_from_a_graph(rank):
    """makes all but the first token of an answer with the weights of its start"""
    first, answer = dict(rank.weights), rank.answer

    def decode(tokens, count, top):
        found = answer(tokens, 1, top)
        text = [*tokens, found[0][0][1]]
        return found + answer_with(rank, first, answer, text, count - 1, top)

    rank.answer = decode


@in_ranks
def two_replicas(rank):
    """has a second replica, which hears of no weights, for every second question"""
    first, answer, turns = dict(rank.weights), rank.answer, itertools.count()

    def answer_in_turn(*args):
        if next(turns) % 2 == 0:
            return answer(*args)
        rank.cache.clear()
        return answer_with(rank, first, answer, *args)

    rank.answer = answer_in_turn


@in_ranks
def two_tiers(rank):
    """keeps texts of 8 letters and more in a second cache, which no flush reaches"""
    answer, host = rank.answer, {}

    def answer_from_both(*args):
        rank.cache.update(host)
        found = answer(*args)
        host.update({text: one for text, one in rank.cache.items() if len(text) >= 8})
        return found

    rank.answer = answer_from_both


def on(server, routes, do):
    """What the server does first when it is asked for one of these routes, and perhaps all."""
    answer = server.answer

    def do_and_answer(route, new):
        return (do(new) if route in routes else None) or answer(route, new)

    server.answer = do_and_answer


def wakes_up_as_it_was(target):
    """sleeps between two updates, and wakes up with a copy of its first weights"""
    if hasattr(target, "weights"):
        first = dict(target.weights)
        target.wake_up = lambda: target.weights.update(first)
        return

    def wake_up(new):
        if target.running.is_set():  # not during an update
            target.ask("wake_up")

    on(target, ["/weights_checker", "/weight_checker"], wake_up)


FAULTS["wakes_up_as_it_was"] = wakes_up_as_it_was


@in_server
def says_false_with_200(server):
    """begins no update, and says so with status 200"""
    on(server, ["/begin_weight_update"], lambda new: {"success": False, "message": "no"})


@in_server
def keeps_its_label(server):
    """does not take the version of new weights"""
    on(server, ["/model_info", "/weight_info"], lambda new: {"weight_version": "default"})


@in_server
def forgets_who_waits(server):
    """goes on with new requests, and not with those that came during the pause"""
    on(server, ["/continue_generation"], lambda new: setattr(server, "running", threading.Event()))


@in_server
def reads_prompts_at_once(server):
    """makes keys and values of a prompt that comes during the pause"""

    def read(new):
        server.ask("answer", new.input_ids, 1, 5)

    on(server, ["/generate"], read)


@in_server
def goes_on_at_the_end(server):
    """answers again when the weights are in, and does not wait to be told"""
    on(server, ["/end_weight_update", "/finish_weight_update"], lambda new: server.running.set())
