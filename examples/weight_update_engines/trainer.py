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
import base64
import collections
import contextlib
import datetime
import http.client
import io
import itertools
import json
import os
import socket
import sys
import tempfile
import threading
import time
import types
import urllib.parse

import protocols as p
import torch
import torch.distributed as dist
from model import LETTERS, Network, cut, held_dtype, log_probs, sha256
from wire import buckets, join_group, pack

PROMPT, FRESH = [3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8]
START = time.monotonic()


EVENTS = []  # what --record writes


def note(lane, began, **what):
    times = {"began": began - START, "ended": time.monotonic() - START}
    EVENTS.append({"lane": lane, **times, **what})


def described(part):
    """Names, dtypes and shapes, as JSON has them. A dtype is "bfloat16", without "torch."."""
    dtypes = [str(one.dtype).removeprefix("torch.") for _, one in part]
    return [name for name, _ in part], dtypes, [list(one.shape) for _, one in part]


class Trouble(Exception):
    """What went wrong, and which engine did it: none if nobody knows."""

    def __init__(self, what, engine=None):
        super().__init__(what)
        self.engine = engine


class Asked(threading.Thread):
    """A request under way. The trainer must be in the same broadcast before its answer comes."""

    def __init__(self, function, *args):
        super().__init__(daemon=True)
        self.call, self.found, self.error = (function, args), None, None
        self.start()

    def run(self):
        function, args = self.call
        del self.call
        try:
            self.found = function(*args)
        except Trouble as error:
            self.error = error
        except Exception as error:
            what = f"what it answered cannot be read: {error!r}"
            self.error = Trouble(what, getattr(function, "__self__", None))

    def result(self):
        self.join()
        if self.error:
            raise self.error
        return self.found


class Engine:
    """What both protocols share. `offset` is the rank of the engine's first rank in its group."""

    def __init__(self, url, options):
        self.url, self.limit, self.options = url, options.limit, options
        self.alive, self.is_open, self.offset, self.tp = True, False, 1, 1

    def post(self, route, content=None, query="", method="POST", may_lack=()):
        """The answer of 200, as JSON or text. Anything else is a Trouble."""
        place = urllib.parse.urlsplit(self.url)
        line = http.client.HTTPConnection(place.hostname, place.port, timeout=self.limit + 2)
        text = json.dumps({} if content is None else content)
        began = time.monotonic()
        try:
            line.request(method, route + query, text, {"Content-Type": "application/json"})
            answer = line.getresponse()
            found = answer.read().decode()
        except TimeoutError as error:
            raise Trouble(f"no answer to {route} within {self.limit + 2:g} s", self) from error
        except (OSError, http.client.HTTPException) as error:
            self.alive = False
            is_refused = isinstance(error, ConnectionRefusedError)
            why = "nobody listens at its address" if is_refused else "its server closed the line"
            raise Trouble(f"the engine is gone: {why}", self) from error
        finally:
            line.close()
            note("http", began, engine=self.url, route=route)
        if answer.status == 404 and route in may_lack:
            return None
        if answer.status != 200:
            raise Trouble(f"{route} answered {answer.status}: {found.strip()}", self)
        found = json.loads(found) if found[:1] in ("[", "{") else found
        if isinstance(found, dict) and found.get("success") is False:
            raise Trouble(f"{route} answered 200, and {found}", self)
        return found

    def send(self, request):
        sessions = p.BeginWeightUpdate.ROUTE, p.EndWeightUpdate.ROUTE  # not before 0.5.21
        return self.post(request.ROUTE, p.body(request), may_lack=sessions)

    def parts(self, weights):
        limit = self.options.bucket_mib * 2**20
        rest = iter(weights.items())
        counts = buckets([one.nbytes for one in weights.values()], limit)
        return [list(itertools.islice(rest, count)) for count in counts]

    def begin_once(self):
        if not self.is_open:
            try:
                self.begin()
            except Trouble:  # perhaps a trainer that crashed has left it open
                self.end(0)
                self.begin()
        self.is_open = True


class SGLang(Engine):
    def size(self):
        return self.post(p.SERVER_INFO, method="GET")["tp_size"]

    def init(self, address, port, world_size, name):
        place = {"master_address": address, "master_port": port, "world_size": world_size}
        backend = {"group_name": name, "backend": self.options.backend}
        self.send(p.InitWeightsUpdateGroup(rank_offset=self.offset, **place, **backend))

    def destroy(self, name):
        self.send(p.DestroyWeightsUpdateGroup(group_name=name))

    def pause(self):
        self.send(p.PauseGeneration())
        self.post(p.FLUSH_CACHE)

    def begin(self):
        self.send(p.BeginWeightUpdate())

    def updates(self, weights, version, name):
        """For each bucket its request, and the numbers of tensors in the broadcasts after it."""
        for part in self.parts(weights):
            names, dtypes, shapes = described(part)
            bucket = {"names": names, "dtypes": dtypes, "shapes": shapes, "group_name": name}
            form = {"flush_cache": False, "load_format": "flattened_bucket"}
            request = p.UpdateWeightsFromDistributed(**bucket, **form, weight_version=str(version))
            yield request, [len(part)]

    def by_handle(self, part, handle, version):
        handles = {"serialized_named_tensors": [handle] * self.tp}
        form = {"flush_cache": False, "load_format": "flattened_bucket"}
        return p.UpdateWeightsFromTensor(**handles, **form, weight_version=str(version))

    def end(self, version):
        self.send(p.EndWeightUpdate())

    def resume(self):
        self.send(p.ContinueGeneration())

    def checksums(self):
        return [rank["checksums"] for rank in self.send(p.CheckWeights())["ranks"]]

    def ask(self, prompt):
        sampling = {"max_new_tokens": 1, "temperature": 0}
        how = {"sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 5}
        answer = self.send(p.Generate(input_ids=prompt, **how))
        best = answer["meta_info"]["output_top_logprobs"][0]
        return {token: logprob for logprob, token, _ in best}

    digits = 16  # of a sha256, in a checksum
    fails_open = True  # an update that failed leaves the session open


class VLLM(Engine):
    def size(self):
        return self.post(p.WORLD_SIZE, method="GET")["world_size"]

    def init(self, address, port, world_size, name):
        limit = int(self.options.bucket_mib * 2**20)
        place = {"master_address": address, "master_port": port, "world_size": world_size}
        packed = {"packed": True, "packed_buffer_size_bytes": limit}
        info = p.NCCLInitInfo(rank_offset=self.offset, **place, **packed)
        self.send(p.InitWeightTransferEngine(init_info=p.body(info)))

    def destroy(self, name):
        if self.is_open:  # else it refuses, and may hold up the engines to which it should send on
            self.is_open = False
            with contextlib.suppress(Trouble):  # an update that failed has closed it
                self.end(0)
        self.post(p.SHUTDOWN)

    def pause(self):
        self.post(p.Pause.ROUTE, query="?mode=abort&clear_cache=true")

    def begin(self):
        if self.options.colocated:
            self.send(p.InitWeightTransferEngine(init_info=p.body(p.IPCInitInfo(packed=True))))
        self.post(p.START)

    def updates(self, weights, version, name):
        """One request for all buckets: the engine cuts by the same rule."""
        names, dtypes, shapes = described(weights.items())
        info = p.NCCLUpdateInfo(names=names, dtype_names=dtypes, shapes=shapes)
        counts = [len(part) for part in self.parts(weights)]
        yield p.UpdateWeights(update_info=p.body(info)), counts

    def by_handle(self, part, handle, version):
        names, dtypes, shapes = described(part)
        plan = {"names": names, "dtype_names": dtypes, "shapes": shapes}
        sizes = [one.nbytes for _, one in part]
        info = p.IPCUpdateInfo(**plan, ipc_handles_pickled=handle, tensor_sizes=sizes)
        return p.UpdateWeights(update_info=p.body(info))

    def end(self, version):
        self.send(p.FinishWeightUpdate(weight_version=str(version)))

    def resume(self):
        self.post(p.RESUME)

    def checksums(self):
        ranks = collections.defaultdict(dict)
        for key, digest in self.send(p.WeightChecker(action="checksum"))["checksums"].items():
            place, name = key.rsplit(":", 1)  # dp0:pp0:pcp0:tp1:query.weight
            ranks[int(place.rsplit("tp", 1)[1])][name] = digest
        return [ranks[one] for one in sorted(ranks)]

    def ask(self, prompt):
        how = {"max_tokens": 1, "temperature": 0, "logprobs": 5, "return_tokens_as_token_ids": True}
        answer = self.send(p.Completion(prompt=prompt, **how))
        best = answer["choices"][0]["logprobs"]["top_logprobs"][0]
        return {int(token.removeprefix("token_id:")): logprob for token, logprob in best.items()}

    digits = 64
    fails_open = False


def join(*group):
    """The group, or the words of the error, so that nothing holds the store any longer."""
    try:
        return join_group(*group)
    except (RuntimeError, ValueError) as error:
        return str(error).splitlines()[0]


def join_vllm(address, port, world_size):
    """On GPUs vLLM has a communicator of its own. We have read its code, and never run it."""
    from vllm.distributed.weight_transfer import nccl_common

    return nccl_common.stateless_init_process_group(address, port, 0, world_size, torch.device(0))


def start_broadcast(packed, group):
    """What it returns says with `is_completed` whether it has ended, and with `wait` how."""
    if isinstance(group, dist.ProcessGroup):
        return dist.broadcast(packed, group_src=0, group=group, async_op=True)
    group.broadcast(packed, src=0)
    ended = torch.cuda.Event()
    ended.record()
    return types.SimpleNamespace(is_completed=ended.query, wait=ended.synchronize)


class Sender:
    """Rank 0 of the trainer: it owns the store, and decides what becomes of an engine."""

    def __init__(self, options):
        kind = VLLM if options.protocol == "vllm" else SGLang
        self.options, self.limit = options, datetime.timedelta(seconds=options.limit)
        self.engines = [kind(url, options) for url in options.engine]
        self.groups, self.tries, self.apart, self.named = [], 0, False, []
        self.began = time.monotonic()

    def name(self, trouble, what_next):
        where = trouble.engine.url if trouble.engine else "trainer"
        seconds = round(time.monotonic() - self.began, 2)
        told = {"where": where, "what": str(trouble), "next": what_next, "seconds": seconds}
        self.named.append(told)
        print(f"{where}: {trouble}. {what_next}.", flush=True)

    def leave_out(self, trouble):
        self.engines.remove(trouble.engine)
        if trouble.engine.alive:
            Asked(trouble.engine.pause)
        stays = "It stays paused" if trouble.engine.alive else "It has ended"
        self.name(trouble, f"{stays}, and the others go on without it")

    def each(self, method, *args):
        """Ask all engines at once. Who fails is left out."""
        asked = {engine: Asked(getattr(engine, method), *args) for engine in self.engines}
        found = {}
        for engine, one in asked.items():
            try:
                found[engine] = one.result()
            except Trouble as trouble:
                self.leave_out(trouble)
        return found

    def wait_for(self, is_done, asked, what):
        """Until it is done. An engine that answers with an error meanwhile will not take part."""
        all_answered = time.monotonic()
        end = all_answered + self.options.limit
        while not is_done():
            if any(one.error for one in asked):
                self.blame(asked, what)
            if any(one.is_alive() for one in asked):
                all_answered = time.monotonic()
            elif time.monotonic() > all_answered + 1:
                raise Trouble(f"200 is the answer, but {what}")
            if time.monotonic() > end:
                raise Trouble(f"{what} within {self.options.limit:g} s")
            time.sleep(0.0005)

    def blame(self, asked, what):
        """Of several errors that of an engine that is gone: it breaks the others' group."""
        end = time.monotonic() + 1
        errors = []
        while time.monotonic() < end and all(error.engine.alive for error in errors):
            time.sleep(0.01)
            errors = [one.error for one in asked if one.error]
        raise min(errors, key=lambda error: error.engine.alive, default=Trouble(what))

    # The group

    def meet(self, engines):
        """A group of this trainer and these engines, with a store, a port and a name of its own."""
        self.tries += 1
        world_size = 1
        for engine in engines:
            engine.offset = world_size  # behind the trainer and the engines before it
            world_size += engine.tp
        # subtle: not rendezvous("tcp://..."), which starts no store under torchrun
        listener = socket.create_server((self.options.host, 0))
        place = *listener.getsockname()[:2], world_size
        name = "weight_update_group" + f"_{self.tries}" * (self.tries > 1)
        if self.options.protocol == "vllm":
            name = f"port {place[1]}"
        # subtle: the requests first, in threads, for each is answered when all have joined
        asked = [Asked(one.init, *place, name) for one in engines]
        if self.options.protocol == "vllm" and self.options.backend == "nccl":
            listener.close()
            joining = Asked(join_vllm, *place)
        else:
            store = dist.TCPStore(
                *place[:2],
                is_master=True,
                timeout=self.limit,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
            joining = Asked(join, store, 0, world_size, name, self.options.backend, self.limit)
            del store
        self.wait_for(lambda: not joining.is_alive(), asked, "not all ranks have joined the group")
        if isinstance(group := joining.result(), str):
            self.blame(asked, f"not all ranks have joined the group: {group}")
        for one in asked:
            one.result()
        return name, group, engines

    def meet_all(self):
        """One group of all engines, or one for each if it is not clear which of them fails."""
        again = joined_apart = False
        while self.engines and not self.groups:
            together = [[one] for one in self.engines] if self.apart else [list(self.engines)]
            for engines in together:
                try:
                    self.groups.append(self.meet(engines))
                except Trouble as trouble:
                    if (trouble.engine and (again or not trouble.engine.alive)) or self.apart:
                        trouble.engine = engines[0] if self.apart else trouble.engine
                        self.leave_out(trouble)
                    else:
                        self.apart = joined_apart = trouble.engine is None
                        again = True
                        how = ", each engine in a group of its own" * self.apart
                        self.name(trouble, f"Again, with a fresh port and name{how}")
            if joined_apart and len(self.groups) == len(together) > 1:
                what = "each engine alone can join, and together they cannot"
                cure = "One of them ignores rank_offset: each keeps a group of its own"
                self.name(Trouble(what), cure)

    def has_left(self):
        return any(one not in self.engines for *_, engines in self.groups for one in engines)

    def part(self):
        """Leave all groups. An engine that is in a broadcast gets an error by that."""
        asked = []
        for name, group, engines in self.groups:
            if isinstance(group, dist.ProcessGroup):
                dist.destroy_process_group(group)
            asked += [Asked(engine.destroy, name) for engine in engines if engine.alive]
        self.groups = []
        for one in asked:  # vLLM ends the group of that moment, so the next one must wait
            one.join(self.options.limit)

    # An update

    def update(self, version, weights):
        self.began = time.monotonic()
        for engine, size in self.each("size").items():
            engine.tp = size
        before = self.each("checksums")
        self.each("pause")
        probes = {engine: Asked(engine.ask, FRESH) for engine in self.engines}
        for engine in self.engines:
            engine.is_open = False
        while not self.sent(version, weights):
            pass
        self.each("end", version)
        after = self.each("checksums")
        for engine, ranks in after.items():
            if wrong := differences(engine, ranks, before[engine], weights, after):
                self.leave_out(Trouble(wrong, engine))
        for engine, one in probes.items():
            if one.found:
                what = "it answered while it was paused, with weights of two versions"
                self.name(Trouble(what, engine), "Throw away what it has answered meanwhile")
        self.each("resume")
        self.compare_answers(version, weights)

    def sent(self, version, weights):
        """Whether all engines that are left have got all. If not, all must be sent again."""
        if self.has_left():
            self.part()
        if not self.groups and not self.options.colocated:
            self.meet_all()
        self.each("begin_once")
        if not self.engines:
            return True
        if self.has_left():
            return False
        asked, engines = [], []
        try:
            if self.options.colocated:
                self.hand_over(version, weights, asked)
            for group, joint, engines in self.groups:
                self.broadcast(group, joint, engines, version, weights, asked)
        except Trouble as trouble:
            if len(engines) == 1:
                trouble.engine = engines[0]
            self.part()
            for one in asked:
                one.join(self.options.limit)
                if one.error:
                    one.error.engine.is_open &= one.error.engine.fails_open
            if trouble.engine:
                self.leave_out(trouble)
            else:
                self.apart = True
                self.name(trouble, "Again, with each engine in a group of its own")
            return False
        return True

    def broadcast(self, name, joint, engines, version, weights, asked):
        tensors = iter(weights.values())
        what = "not all ranks have taken part in a broadcast"
        updates = [engine.updates(weights, version, name) for engine in engines]
        for same_bucket in zip(*updates, strict=True):
            requests, (counts, *_) = zip(*same_bucket, strict=True)
            asked[:] = [Asked(one.send, new) for one, new in zip(engines, requests, strict=True)]
            for count in counts:
                packed = pack(itertools.islice(tensors, count))
                began = time.monotonic()
                work = start_broadcast(packed, joint)
                self.wait_for(work.is_completed, asked, what)
                try:
                    work.wait()
                except RuntimeError as error:
                    self.blame(asked, f"{what}: {str(error).splitlines()[0]}")
                note("broadcast", began, bytes=packed.nbytes)
            for one in asked:
                one.result()

    def hand_over(self, version, weights, asked):
        """For engines on this device: no bytes travel, only the name of the memory they are in."""
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
        for part in self.engines[0].parts(weights):
            packed = pack(one for _, one in part)
            with tempfile.NamedTemporaryFile(dir=folder) as file:
                began = time.monotonic()
                form = {"size": packed.nbytes, "dtype": torch.uint8}
                torch.from_file(file.name, shared=True, **form).copy_(packed)
                plan = list(zip(*described(part), strict=True))
                torch.save((file.name, packed.nbytes, plan), text := io.BytesIO())
                handle = base64.b64encode(text.getvalue()).decode()
                requests = [
                    (one.send, one.by_handle(part, handle, version)) for one in self.engines
                ]
                asked[:] = [Asked(*one) for one in requests]
                for one in asked:  # subtle: the memory must live until the last engine has answered
                    one.result()
                note("memory", began, bytes=packed.nbytes)

    def compare_answers(self, version, weights):
        """An answer to a prompt that was asked before every update, so its keys were cached."""
        held = {name: one.float() for name, one in weights.items()}
        held["head.weight"] = held["embed.weight"]

        def far(prompt, answer):
            right = log_probs(held, prompt)
            errors = [abs(right[token].item() - one) for token, one in answer.items()]
            return not errors or any(not one <= self.options.tolerance for one in errors)  # or nan

        for engine, answer in self.each("ask", PROMPT).items():
            if far(PROMPT, answer):
                new = [version % LETTERS, *FRESH]
                why = "otherwise than the trainer's model"
                with contextlib.suppress(Trouble):
                    if not far(new, engine.ask(new)):
                        why = (
                            "with keys and values of old weights, and a prompt that is new rightly"
                        )
                self.leave_out(Trouble(f"it has the weights, and answers {why}", engine))


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
        for one in [Asked(engine.ask, PROMPT) for engine in sender.engines]:
            one.join(options.limit)  # no answer from an engine that a trainer has left paused
    for version in range(1, options.updates + 1):
        train_step(model, version, ranks)
        if sender and sender.engines:
            sender.update(version, to_send(model))
            held = f"held by {len(sender.engines)} of {len(options.engine)} engines"
            print(f"version {version}: {held}", flush=True)
    if sender:
        sender.part()
        if options.record:
            with open(options.record, "w") as file:
                json.dump(EVENTS, file)
        held = [engine.url for engine in sender.engines]
        found = {"version": options.updates, "held_by": held, "named": sender.named}
        print(json.dumps(found), flush=True)
        os._exit(1 if sender.named else 0)  # subtle: threads may still wait for a dead engine


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
    if options.host == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    main(options)
