"""What no command of ours asks: each prints what it finds, and returns whether it is as claimed."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from tools.first_gpu_run.perform import ROOT
from tools.first_gpu_run.plan import TORCHRUN

EXAMPLES = ROOT / "examples"
# For as long as one sees that the loss falls.
PROGRAMS = {"train_ddp.py": ("--epochs", "2"), "train_sharded.py": ("--steps", "30")}
ROUTE = ("first_training.py", "route/9_train_ddp.py")
LIMIT = 20.0  # seconds for what hangs on purpose


def _two_on_one_gpu(rank: int, file: str) -> None:
    """Without a line of ours, because `launch` would refuse before NCCL is asked."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    store = dist.FileStore(file, 2)
    limit = timedelta(seconds=LIMIT)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2, timeout=limit)
    try:
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
        print(f"rank {rank}: no error", flush=True)
    except Exception as error:
        print(f"rank {rank}: {type(error).__module__}.{type(error).__name__}: {error}", flush=True)
        os._exit(1)  # a communicator that was never made cannot be ended
    dist.destroy_process_group()


def refusal(ranks: int) -> bool:
    """Whether NCCL refuses two ranks on one GPU. What it says stands in the output."""
    import torch.multiprocessing as mp

    os.environ["NCCL_DEBUG"] = "WARN"
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        both = [
            context.Process(target=_two_on_one_gpu, args=(rank, f"{folder}/store"), daemon=True)
            for rank in range(2)
        ]
        for process in both:
            process.start()
        for process in both:
            process.join()
    return all(process.exitcode for process in both)


def _train(ranks: int, program: Path, *options: str) -> bool:
    """Train, in a folder that goes again, since the programs keep checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        return _program(folder, "--nproc-per-node", str(ranks), str(program), *options)


def _program(folder: str, *words: str) -> bool:
    begin = time.monotonic()
    status = subprocess.run([*TORCHRUN, *words], cwd=folder).returncode
    print(f"{Path(words[2]).name}: status {status}, {time.monotonic() - begin:.1f} s", flush=True)
    return status == 0


def route(ranks: int) -> bool:
    """README's first program, and the one that grows in the nine lessons."""
    ended = [_train(ranks, EXAMPLES / name) for name in ROUTE]
    return all(ended)


def examples(ranks: int) -> bool:
    """The programs to take away."""
    ended = [_train(ranks, EXAMPLES / name, *options) for name, options in PROGRAMS.items()]
    if ranks > 1:
        ended.append(_train(ranks, EXAMPLES / "weight_update.py", "--trainers", "1"))
    ended.append(_train(ranks, EXAMPLES / "probe_backend.py", "nccl", "cuda"))
    return all(ended)


def half(ranks: int) -> bool:
    """The same two programs in bfloat16, or in float16 where the GPU has no bfloat16."""
    import torch

    has_it = torch.cuda.is_bf16_supported(including_emulation=False)
    print("bfloat16" if has_it else "float16, because this GPU has no bfloat16", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        ended = []
        for name, options in PROGRAMS.items():
            text = (EXAMPLES / name).read_text(encoding="utf-8")
            # Their gradients are large enough for float16. Yours may need a torch.amp.GradScaler.
            program = Path(folder, name)
            program.write_text(text if has_it else text.replace("torch.bfloat16", "torch.float16"))
            ended.append(_train(ranks, program, *options, "--bf16"))
    return all(ended)


def _memory(rank: int, world_size: int, device):
    """What is held, as the lesson counts it, and what the allocator says. In bytes."""
    import torch

    from collectives.course import files

    lesson = files.load(files.find("model_parallel/memory"))
    lesson.train(lesson.network(device), device)  # with the first product comes a workspace
    before = torch.cuda.memory_allocated()
    model = lesson.network(device)
    made = torch.cuda.memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    trained = lesson.train(model, device, live=(live := lesson.Live(model)))
    counted = lesson.held(*trained)
    held, at_most = sum(counted.values()), torch.cuda.max_memory_allocated() - before
    computed = dict.fromkeys(("parameters", "gradients"), 8 * lesson.PARAMETERS)
    computed["optimizer state"] = 16 * lesson.PARAMETERS
    characters = 8 * lesson.LENGTH
    computed["activations"] = 8 * (characters * (2 * lesson.BLOCK + lesson.HEAD) + 3)
    return {
        "parameters": (computed["parameters"], counted["parameters"], made),
        "held after a step": (
            sum(computed.values()) - computed["activations"],
            held,
            torch.cuda.memory_allocated() - before,
        ),
        "peak": (sum(computed.values()), held + live.peak, at_most),
    }


def memory(ranks: int) -> bool:
    """Print both beside what the lesson computes. It is so if the allocator says no less."""
    from collectives import launch

    found = launch(_memory, ranks, backend="nccl")[0]
    print("bytes              computed   counted  allocator (in blocks of 512)")
    for name, numbers in found.items():
        print(f"{name:18}", *(f"{number:9,}" for number in numbers))
    return all(allocated >= counted for _, counted, allocated in found.values())


def _wait(rank: int, world_size: int, device):
    """Events on two streams, around an all_reduce that is queued behind a long kernel."""
    import torch
    import torch.distributed as dist

    x = torch.ones(1 << 20, device=device)
    dist.all_reduce(x)  # the connections are made
    torch.cuda.synchronize()
    begin, untold, told = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    other, since = torch.cuda.Stream(), time.perf_counter()
    with torch.cuda.stream(other):
        begin.record()
        torch.cuda._sleep(10**9)  # cycles of the GPU: about half a second
        work = dist.all_reduce(x, async_op=True)
    untold.record()  # on the stream of this program, which nothing has told to wait
    untold.synchronize()
    early = work.is_completed()
    work.wait()
    host = time.perf_counter() - since
    told.record()
    after_wait = told.query()
    told.synchronize()
    return {
        "before wait(), the program's stream ended behind": begin.elapsed_time(untold),
        "wait() returned after": 1000 * host,
        "behind wait(), the program's stream ended after": begin.elapsed_time(told),
    }, (early, after_wait)


def wait(ranks: int) -> bool:
    """Whether wait() returns before the GPU has done the call, and the stream waits for it."""
    from collectives import launch

    times, (early, after_wait) = launch(_wait, ranks, backend="nccl")[0]
    for name, milliseconds in times.items():
        print(f"{name} {milliseconds:.1f} ms")
    print(f"all_reduce was done before wait(): {early}; when wait() had returned: {after_wait}")
    return not early and not after_wait


TRIES: dict[str, Callable[[int], bool]] = {
    one.__name__: one for one in (refusal, route, examples, half, memory, wait)
}
