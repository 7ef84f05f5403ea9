"""Train a small model, and send its weights to engines after each step, in the engine's words.

    python stub_engine.py --protocol sglang --tp 2 --port 30000
    python trainer.py --protocol sglang --engine http://127.0.0.1:30000

Give --engine once for each engine. With torchrun, several ranks train, and rank 0 sends:

    torchrun --standalone --nproc-per-node 2 trainer.py --engine http://127.0.0.1:30000

On two machines, tell the engines where the trainer is (`--host` of the stub opens its port):

    python stub_engine.py --host 0.0.0.0 --port 30000
    python trainer.py --host node0 --engine http://node1:30000

An answer 200 is not believed. After each update the trainer compares the engine's checksums with
its own, and the engine's answer to a prompt with its own. Exit status 0: all engines hold the
weights; 1: something was named, though a retry may have cured it; 2: usage. The last line is JSON.
"""

import argparse
import json
import os
import sys
import time
from importlib.util import find_spec

import torch
import torch.distributed as dist
from engines import EVENTS, TOKENS, Asked, Trouble
from model import LETTERS, Network, cut, held_dtype, log_probs, sha256
from sender import Sender

# Longer than the blocks in which an engine caches texts. The first is asked before every update.
KNOWN, PAUSED = ([place * place * step % LETTERS for place in range(1, 41)] for step in (1, 5))


def update(sender, version, weights):
    """All engines at once, in this order. Who fails is left out, and the others go on."""
    sender.began = time.monotonic()
    for engine, size in sender.each("size").items():
        engine.tp = size
    before = sender.each("checksums")
    compare_with_the_last_update(sender, before)
    sender.each("pause")
    early = {engine: Asked(engine.ask, PAUSED) for engine in sender.engines}
    while not sender.sent(version, weights):
        pass
    for engine in sender.each("end", version):
        engine.is_open = False
    late = {engine: Asked(engine.ask, PAUSED) for engine in sender.engines}
    after = sender.each("checksums")
    for engine, ranks in after.items():
        if wrong := differences(engine, ranks, before[engine], weights, after):
            sender.leave_out(Trouble(wrong, engine))
        engine.held = ranks
    for engine, label in sender.each("label").items():
        if label != str(version):
            what = f"it calls its weights version {label}, and they are version {version}"
            sender.name(Trouble(what, engine), "Do not believe its label")
    waiting = {}
    for engine in late:
        if not engine.keeps_requests:  # so it refuses it now
            late[engine].join(sender.options.limit)
        if early[engine].found or late[engine].found:
            what = "it answered while it was paused, with weights that nobody had compared"
            sender.name(Trouble(what, engine), "Throw away what it has answered meanwhile")
        elif engine.keeps_requests:
            waiting[engine] = early[engine], late[engine]
    sender.each("resume")
    compare_answers(sender, version, weights, waiting)


def compare_with_the_last_update(sender, found):
    for engine, ranks in found.items():
        if engine.held not in (None, ranks):
            what = "its weights are no longer those of the last update"
            sender.name(Trouble(what, engine), "Throw away what it has answered since")


def differences(engine, ranks, before, weights, all_found):
    """What an engine holds otherwise than the trainer, by rank and tensor, or an empty text."""
    if len(ranks) != engine.tp:
        return f"its checksums are of {len(ranks)} ranks, and it has {engine.tp}"
    nothing = "it answered 200 and has taken nothing: all its tensors are as they were"
    for rank, sums in enumerate(ranks):
        ours = {name: cut(name, one, rank, engine.tp) for name, one in weights.items()}
        ours["head.weight"] = ours["embed.weight"]
        if set(sums) != set(ours):  # a real engine, which fuses tensors: compare it with its like
            if ranks == before:
                return nothing
            like = [found for one, found in all_found.items() if one.tp == engine.tp]
            if any(found[rank] != sums for found in like):
                return f"its rank {rank} holds other weights than the same rank of another engine"
            continue
        digests = {name: sha256(one)[: engine.digits] for name, one in ours.items()}
        if wrong := [name for name in digests if sums[name] != digests[name]]:
            if ranks == before:
                return nothing
            return f"its rank {rank} holds other weights than the trainer in {', '.join(wrong)}"
    return ""


def compare_answers(sender, version, weights, waiting):
    """To a prompt whose keys were cached, to a new one, and to one that came in the pause."""
    held = {name: one.float() for name, one in weights.items()}
    held["head.weight"] = held["embed.weight"]

    def far(text, answer):
        for best in answer:
            right = log_probs(held, text)
            errors = [abs(right[token].item() - one) for token, one in best.items()]
            if not errors or any(not one <= sender.options.tolerance for one in errors):  # or nan
                return True
            text = [*text, max(best, key=best.get)]
        return len(answer) != TOKENS

    new = [8 + version % 40, *PAUSED]  # the others begin with 1 and 5, and share no key with it
    for engine, known in sender.each("ask", KNOWN).items():
        try:
            is_wrong = far(new, engine.ask(new))
            for one in waiting.get(engine, ())[1:]:  # the first may have waited for too long
                one.result()
        except Trouble as trouble:
            sender.leave_out(trouble)
            continue
        what = "it has the weights, and answers "
        if is_wrong:
            sender.leave_out(Trouble(f"{what}otherwise than the trainer's model", engine))
        elif far(KNOWN, known):
            what += "with keys and values of old weights, and a prompt that is new rightly"
            sender.leave_out(Trouble(what, engine))
        elif any(one.found and far(PAUSED, one.found) for one in waiting.get(engine, ())):
            what += "what it was asked during the pause with keys and values of old weights"
            sender.leave_out(Trouble(what, engine))


def train_step(model, step, ranks):
    """Stands for your training: texts in which each letter follows from the two before it."""
    torch.manual_seed(1000 * step + (dist.get_rank() if ranks > 1 else 0))
    model.zero_grad()
    for _ in range(8):
        text = torch.randint(LETTERS, (2,)).tolist()
        for _ in range(4):
            text.append((text[-1] + text[-2]) % LETTERS)
        for end in (2, 3, 4, 5):
            (-model(text[:end])[text[end]] / 32).backward()
    for parameter in model.parameters():
        if ranks > 1:
            dist.all_reduce(parameter.grad)
        parameter.data -= 0.1 / ranks * parameter.grad


def to_send(model):
    """As the engine holds them, the wider dtypes first, so that every tensor is aligned."""
    found = {name: one.detach().to(held_dtype(name)) for name, one in model.named_parameters()}
    return dict(sorted(found.items(), key=lambda item: -item[1].itemsize))


def main(options):
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group(backend=options.backend)
    torch.manual_seed(0)
    gpu = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    model = Network(options.width).to(gpu if options.backend == "nccl" else "cpu")
    sender = Sender(options) if ranks == 1 or dist.get_rank() == 0 else None
    if sender:
        for one in [Asked(engine.ask, KNOWN) for engine in sender.engines]:
            one.join(options.limit)  # no answer from an engine that a trainer has left paused
    sent = 0
    for version in range(1, options.updates + 1):
        train_step(model, version, ranks)
        if sender and sender.engines:
            update(sender, version, to_send(model))
            sent, held = version, f"held by {len(sender.engines)} of {len(options.engine)} engines"
            print(f"version {version}: {held}", flush=True)
            if not sender.engines:
                print("No engine is left: the training goes on alone.", flush=True)
    if sender:
        compare_with_the_last_update(sender, sender.each("checksums"))
        sender.part()
        if options.record:
            with open(options.record, "w") as file:
                json.dump(EVENTS, file)
        held = [engine.url for engine in sender.engines]
        found = {"version": sent, "held_by": held, "named": sender.named}
        print(json.dumps(found), flush=True)
        os._exit(1 if sender.named else 0)  # subtle: threads may still wait for a dead engine
    if ranks > 1:
        dist.destroy_process_group()  # else a thread of gloo may outlive Python, which aborts


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", action="append", required=True, metavar="URL")
    parser.add_argument("--protocol", choices=["sglang", "vllm"], default="sglang")
    parser.add_argument("--host", default="127.0.0.1", help="of this machine, for the engines")
    parser.add_argument("--backend", default="gloo", help="nccl for engines on GPUs, not the stub")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--bucket-mib", type=float, default=512)
    parser.add_argument("--colocated", action="store_true", help="hand over by shared memory")
    parser.add_argument("--limit", type=float, default=30, help="seconds to wait for an engine")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of log-probabilities")
    parser.add_argument("--width", type=int, default=64, help="of the model")
    parser.add_argument("--record", metavar="FILE", help="write when each request began and ended")
    options = parser.parse_args()
    if options.updates < 1:
        parser.error("--updates: without one, nothing is compared")
    if (options.protocol, options.backend) == ("vllm", "nccl") and not find_spec("vllm"):
        parser.error("--backend nccl: over it vLLM speaks to its own class, so install vLLM here")
    if options.host == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    main(options)
