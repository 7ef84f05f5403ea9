"""What the lesson training/faster quotes: seconds of an epoch of examples/train_ddp.py.

python benchmarks/seconds_per_epoch.py

One thread for each rank, in turns. Other programs only make a turn slower, so the fastest counts.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "examples" / "train_ddp.py"
TURNS, EPOCHS = 3, 20
LIMIT = 100  # seconds for one training


def seconds(ranks: int) -> float:
    """On average: the program prints a line at the end of each epoch."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
        options = [f"--epochs={EPOCHS}", "--save-every=1000", f"--checkpoint={folder}/one.pt"]
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            [*command, str(PROGRAM), *options], stdout=subprocess.PIPE, text=True, env=environ
        ) as process:
            limit = threading.Timer(LIMIT, process.terminate)  # torchrun ends its ranks, too
            limit.start()
            ends = [time.perf_counter() for line in process.stdout if line.startswith("epoch")]
            limit.cancel()
        return (ends[-1] - ends[0]) / (len(ends) - 1)


if __name__ == "__main__":
    for _ in range(TURNS):
        print({ranks: round(seconds(ranks), 3) for ranks in (1, 2)}, flush=True)
