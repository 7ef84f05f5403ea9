"""What a trainer asks an engine over HTTP: SGLang in its words, and vLLM in its own."""

import collections
import contextlib
import http.client
import itertools
import json
import threading
import time
import urllib.parse

import protocols as p
from wire import buckets

TOKENS = 3  # of an answer: the first is made from the whole prompt, the others one by one
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
        self.held = None  # its checksums after the last update

    def post(self, route, content=None, query="", method="POST", may_lack=()):
        """The answer of 200, as JSON or text. Anything else is a Trouble."""
        place = urllib.parse.urlsplit(self.url)
        line = http.client.HTTPConnection(place.hostname, place.port, timeout=self.limit + 2)
        text = json.dumps({} if content is None else content)
        began, status = time.monotonic(), None
        try:
            line.request(method, route + query, text, {"Content-Type": "application/json"})
            answer = line.getresponse()
            found, status = answer.read().decode(), answer.status
        except TimeoutError as error:
            raise Trouble(f"no answer to {route} within {self.limit + 2:g} s", self) from error
        except (OSError, http.client.HTTPException) as error:
            self.alive = False
            is_refused = isinstance(error, ConnectionRefusedError)
            why = "nobody listens at its address" if is_refused else "its server closed the line"
            raise Trouble(f"the engine is gone: {why}", self) from error
        finally:
            line.close()
            note("http", began, engine=self.url, route=route, status=status)
        if status == 404 and route in may_lack:
            return None
        if status != 200:
            raise Trouble(f"{route} answered {status}: {found.strip()}", self)
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
            except Trouble as refused:  # perhaps a trainer that crashed has left it open
                try:
                    self.end(0)
                except Trouble:
                    raise refused from None
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

    def label(self):
        return self.post(p.MODEL_INFO, method="GET")["weight_version"]

    def ask(self, prompt):
        sampling = {"max_new_tokens": TOKENS, "temperature": 0}
        how = {"sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 5}
        answer = self.send(p.Generate(input_ids=prompt, **how))
        best = answer["meta_info"]["output_top_logprobs"]
        return [{token: logprob for logprob, token, _ in one} for one in best]

    digits = 16  # of a sha256, in a checksum
    keeps_requests = True  # that come while it is paused, and answers them afterwards
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

    def label(self):
        return self.post(p.WEIGHT_INFO, method="GET")["weight_version"]

    def ask(self, prompt):
        form = {"logprobs": 5, "return_tokens_as_token_ids": True}
        answer = self.send(p.Completion(prompt=prompt, max_tokens=TOKENS, temperature=0, **form))
        best = answer["choices"][0]["logprobs"]["top_logprobs"]
        return [{int(name.removeprefix("token_id:")): one[name] for name in one} for one in best]

    digits = 64
    keeps_requests = False
    fails_open = False
