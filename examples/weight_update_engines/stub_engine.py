"""Play an inference engine: SGLang's or vLLM's HTTP, and what is behind it when weights come.

    python stub_engine.py --protocol sglang --tp 2 --port 30000
    python stub_engine.py --protocol vllm --port 30001 --fault swapped

It needs torch and the files of this folder. It listens on this machine only, unless --host says
more: a real engine's routes for weights let anybody on the network change its model. Its ranks are
processes, each with its slice of every tensor in the engine's dtype, and with a cache of keys and
values. Over --protocol sglang it is 0.5.23, and over sglang-0.5.20 there are no sessions.
"""

import argparse
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import protocols as p
from stub_ranks import Engine
from wire import buckets, size_of


class SGLang(Engine):
    def answer(self, route, new):
        done = p.body(p.Success(success=True, message="Success"))
        match route:
            case p.PauseGeneration.ROUTE:
                self.pause()
                return {"message": "Generation paused successfully.", "status": "ok"}
            case p.ContinueGeneration.ROUTE:
                self.running.set()
                return {"message": "Generation continued successfully.", "status": "ok"}
            case p.FLUSH_CACHE:
                self.ask("flush")
                return "Cache flushed.\n"
            case p.InitWeightsUpdateGroup.ROUTE:
                self.ask("join", *vars(new).values())
            case p.DestroyWeightsUpdateGroup.ROUTE:
                self.ask("leave", new.group_name)
            case p.BeginWeightUpdate.ROUTE if not self.old:
                self.begin()
            case p.EndWeightUpdate.ROUTE if not self.old:
                self.finish()
            case p.UpdateWeightsFromDistributed.ROUTE:
                one_by_one = [1] * len(new.names)
                counts = [len(new.names)] if new.load_format == "flattened_bucket" else one_by_one
                self.update(
                    "update", new, new.names, new.dtypes, new.shapes, counts, new.group_name
                )
            case p.UpdateWeightsFromTensor.ROUTE:
                self.update("update_by_handle", new, new.serialized_named_tensors)
            case p.CheckWeights.ROUTE:
                all_ranks = enumerate(self.ask("checksums"))
                return done | {"ranks": [self.checksum(rank, sums) for rank, sums in all_ranks]}
            case p.MODEL_INFO:
                return {"weight_version": self.version}
            case p.SERVER_INFO:
                return {"tp_size": self.tp_told, "version": "0.5.20" if self.old else "0.5.23"}
            case p.Generate.ROUTE:
                self.running.wait()
                count = new.sampling_params["max_new_tokens"]
                best = self.ask("answer", new.input_ids, count, new.top_logprobs_num)[0]
                tops = [[[logprob, token, None] for logprob, token in one] for one in best]
                return {"meta_info": {"output_top_logprobs": tops}}
            case _:
                raise FileNotFoundError(route)
        return done

    def update(self, name, new, *args):
        if not (self.old or self.session):
            raise ValueError("must run between begin_weight_update() and end_weight_update()")
        try:
            self.ask(name, *args)
        except Exception as error:
            partial = "The full weights of the ModelRunner are partially updated."
            raise ValueError(f"Failed to update parameter online: {error}. {partial}") from error
        self.version = new.weight_version or self.version
        if new.flush_cache:
            self.ask("flush")

    def checksum(self, rank, sums):
        place = {"role": "target", "tp_rank": rank, "tp_size": self.tp}
        sums = {name: one[:16] for name, one in sums.items()}
        return {"checksums": sums, "parallelism_info": place if self.old else [place]}

    def refusal(self, error):
        return 400, p.body(p.Success(success=False, message=str(error)))


class VLLM(Engine):
    def answer(self, route, new):
        match route:
            case p.Pause.ROUTE:
                if new.clear_cache:
                    self.ask("flush")
                self.pause()
                return {"status": "paused"}
            case p.RESUME:
                self.running.set()
                return {"status": "resumed"}
            case p.InitWeightTransferEngine.ROUTE:
                info = new.init_info
                if "master_port" in info:  # else colocated
                    self.info = p.NCCLInitInfo(**info)
                    new = self.info  # subtle: a real one has no group of torch here, and no gloo
                    place = new.master_address, new.master_port, new.rank_offset, new.world_size
                    self.ask("join", *place, self.group, "gloo")
                return {"message": "Weight transfer initialized"}
            case p.SHUTDOWN:
                if self.session:
                    raise RuntimeError("Cannot release a trainer connection during an update")
                self.ask("leave", self.group)
                return {"message": "Weight transfer shut down"}
            case p.START:
                self.begin()
                return {"message": "Weight update started"}
            case p.UpdateWeights.ROUTE:
                self.update(new.update_info)
                return {"message": "Weights updated"}
            case p.FinishWeightUpdate.ROUTE:
                self.finish()
                self.version = new.weight_version or self.version
                return {"message": "Weight update finished"}
            case p.WeightChecker.ROUTE:
                ranks = enumerate(self.ask("checksums"))
                sums = {
                    f"dp0:pp0:pcp0:tp{r}:{name}": x for r, one in ranks for name, x in one.items()
                }
                return {"checksums": sums}
            case p.WEIGHT_INFO:
                return {"weight_version": self.version}
            case p.WORLD_SIZE:
                return {"world_size": self.tp_told}
            case p.Completion.ROUTE:
                if not self.running.is_set():
                    raise ConnectionRefusedError("paused")
                best = self.ask("answer", new.prompt, new.max_tokens, new.logprobs)[0]
                tops = [{f"token_id:{token}": logprob for logprob, token in one} for one in best]
                return {"choices": [{"index": 0, "logprobs": {"top_logprobs": tops}}]}
        raise FileNotFoundError(route)

    def update(self, info):
        if not self.session:
            raise RuntimeError("start_weight_update must be called before update_weights.")
        self.session = False  # an update that fails closes it
        if "ipc_handles_pickled" in info:
            self.ask("update_by_handle", [p.IPCUpdateInfo(**info).ipc_handles_pickled] * self.tp)
        else:
            self.last = p.NCCLUpdateInfo(**info) if info.get("names") else self.last
            plan = self.last.names, self.last.dtype_names, self.last.shapes
            sizes = [size_of(*one) for one in zip(*plan[1:], strict=True)]
            counts = buckets(sizes, self.info.packed_buffer_size_bytes)
            self.ask("update", *plan, counts if self.info.packed else [1] * len(sizes), self.group)
        self.session = True

    group = property(lambda self: f"port {self.info.master_port}")

    def refusal(self, error):
        codes = {ConnectionRefusedError: 503, TypeError: 400, ValueError: 400}
        code = codes.get(type(error), 500)
        info = p.ErrorInfo(message=str(error), type=type(error).__name__, code=code)
        return code, {"error": p.body(info)}


def handler(engine):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            address = urlsplit(self.path)
            text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                new = p.parse(address.path, parse_qsl(address.query), text)
                status, found = 200, engine.answer(address.path, new)
            except FileNotFoundError:
                status, found = 404, {"detail": "Not Found"}
            except Exception as error:
                status, found = engine.refusal(error)
            found = found if isinstance(found, str) else json.dumps(found)
            self.send_response(status)
            self.send_header("Content-Length", str(len(found.encode())))
            self.end_headers()
            self.wfile.write(found.encode())

        do_GET = do_POST

        def log_message(self, *_):
            pass

    return Handler


def main():
    from faults import FAULTS

    listed = "\n".join(f"  {name:22} {one.__doc__.splitlines()[0]}" for name, one in FAULTS.items())
    parser = argparse.ArgumentParser(
        epilog=f"faults:\n{listed}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--protocol", choices=["sglang", "sglang-0.5.20", "vllm"], default="sglang")
    parser.add_argument("--tp", type=int, choices=[1, 2, 4], default=1, help="ranks of this engine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: the first line says which")
    parser.add_argument("--width", type=int, default=64, help="of the model")
    parser.add_argument("--seed", type=int, default=1, help="of the weights at the start")
    parser.add_argument("--fault", choices=FAULTS, metavar="NAME", default="none", help="see below")
    options = parser.parse_args()
    if options.host == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    engine = (VLLM if options.protocol == "vllm" else SGLang)(options, FAULTS[options.fault])
    signal.signal(signal.SIGTERM, lambda *_: engine.end("SIGTERM"))
    server = ThreadingHTTPServer((options.host, options.port), handler(engine))
    engine.ask("flush")  # when all ranks are there
    print(f"http://{options.host}:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        engine.end("Ctrl-C")


if __name__ == "__main__":
    main()
