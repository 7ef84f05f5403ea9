"""Rank 0 of the trainer: the group that it makes with engines, and the buckets that it sends."""

import base64
import datetime
import io
import itertools
import os
import socket
import tempfile
import time
import types

import torch
import torch.distributed as dist
from engines import VLLM, Asked, SGLang, Trouble, described, note
from wire import join_group, pack


def join(*group):
    """The group, or the words of the error, so that nothing holds the store any longer."""
    try:
        return join_group(*group)
    except (RuntimeError, ValueError) as error:
        return str(error).splitlines()[0]


def join_vllm(address, port, world_size):
    """On GPUs vLLM has a communicator of its own. We have read its code, and never run it."""
    from vllm.distributed.weight_transfer import nccl_common

    gpu = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))  # as the model has
    return nccl_common.stateless_init_process_group(address, port, 0, world_size, gpu)


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
        # subtle: torch waits a little longer than wait_for, which says what was not done
        self.options, self.limit = options, datetime.timedelta(seconds=options.limit + 0.2)
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
        self.name(trouble, stays + ", and the others go on without it" * bool(self.engines))

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
                        is_alone = len(self.engines) == 1
                        how = ", each engine in a group of its own" * (self.apart and not is_alone)
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
