"""Time collectives of any size as nccl-tests does, and count the elements that are wrong.

Buffers, and what they must hold afterwards, are those of the matrix (semantics/forms), only longer.
In the in-place form of a call, some of them lie inside others, as in nccl-tests.
"""

import functools
import json
import statistics
import time
from dataclasses import asdict, dataclass
from types import SimpleNamespace

import torch
import torch.distributed as dist

from collectives.bench.bus_table import (
    OPS,
    PLACES,
    TYPES,
    Row,
    csv_text,
    elements,
    figures,
    size,
    text,
)
from collectives.launcher.launch import launch_in
from collectives.launcher.world import World
from collectives.semantics import calls, forms, values
from collectives.semantics.check import bits
from collectives.semantics.form import ANYTHING, Buffer, Case
from collectives.semantics.probe import complement
from collectives.words import did_you_mean

# The call that is timed for each collective.
FORMS = {
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "all_gather_single",
    "reduce_scatter": "reduce_scatter_single",
    "all_to_all": "all_to_all_single",
    "gather": "gather",
    "scatter": "scatter",
}

# The calls that take one buffer inside of the other, at the rank's place, as in nccl-tests.
_IN_PLACE = {"all_gather": ("input", "output"), "reduce_scatter": ("output", "input")}

# The data repeat after so many elements. It is a prime, so that a piece in the wrong place is
# noticed whatever its length.
_PERIOD = 1009


@dataclass(frozen=True)
class Request:
    """`begin`, `end`: bytes; each size is `factor` times the one before. `iters` calls are timed
    together, after `warmup` others. `op` and `root` count where a call has them."""

    collectives: tuple[str, ...]
    begin: int
    end: int
    factor: int
    dtype: str = "float32"
    op: str = "SUM"
    root: int = 0
    iters: int = 20
    warmup: int = 5

    @property
    def sizes(self) -> list[int]:
        found, nbytes = [], self.begin
        while nbytes <= self.end:
            found.append(nbytes)
            nbytes *= self.factor
        return found

    def check(self, n: int) -> None:
        """Raises ValueError, with the way out, if `n` ranks cannot measure this."""
        for what, name, known in (
            *(("collective", name, FORMS) for name in self.collectives),
            ("--dtype", self.dtype, values.DTYPES),
            ("--op", self.op, calls.OPS),
        ):
            if name not in known:
                hint = did_you_mean(name, known)
                raise ValueError(f"{what} {name!r}: {hint}There are {', '.join(known)}.")
        itemsize = values.DTYPES[self.dtype].itemsize
        if self.begin < itemsize:
            raise ValueError(f"-b {self.begin}: an element of {self.dtype} has {itemsize} bytes.")
        if self.begin > self.end:
            raise ValueError(f"-b {self.begin} is more than -e {self.end}: there is no size.")
        if not 0 <= self.root < n:
            raise ValueError(f"--root {self.root}: the ranks are 0 to {n - 1}.")
        reduces = any(calls.CALLS[FORMS[name]].reduces for name in self.collectives)
        if reduces and not values.has_meaning(self.op, values.DTYPES[self.dtype]):
            raise ValueError(f"--op {self.op} has no meaning for {self.dtype}: take SUM.")


def missing(collective: str) -> dict[str, str]:
    """Why a collective has no out-of-place or no in-place form, if it has none."""
    name = FORMS[collective]
    if calls.CALLS[name].in_place:
        return {"out-of-place": f"dist.{name} always works in place"}
    if collective not in _IN_PLACE:
        return {"in-place": f"dist.{name} has no in-place form"}
    return {}


@dataclass(frozen=True)
class Sized(Case):
    """A case of any length, whose data repeat: they are made as quickly as they are long."""

    @functools.cached_property
    def reduce_op(self):
        return super().reduce_op

    def moved(self, code: int, length: int | None = None) -> torch.Tensor:
        return self._repeated(super().moved(code, _PERIOD), 0, length)

    def term(self, rank: int, start: int = 0, length: int | None = None) -> torch.Tensor:
        return self._repeated(super().term(rank, 0, _PERIOD), start, length)

    def reduced(self, start: int = 0, length: int | None = None) -> torch.Tensor:
        return self._repeated(super().reduced(0, _PERIOD), start, length)

    def _repeated(self, period: torch.Tensor, start: int, length: int | None) -> torch.Tensor:
        length, first = self.length if length is None else length, start % _PERIOD
        return period.repeat(-(-(first + length) // _PERIOD))[first : first + length]


class Trial:
    """A call on buffers that are laid out once. Buffers whose names begin with `input` are given;
    the others hold the result."""

    def __init__(self, collective: str, case: Sized, in_place: bool):
        form = forms.FORMS[FORMS[collective]]
        self.plan = form.plan(case)
        tensors = {name: _empty(part, case.device) for name, part in self.plan.items()}
        if in_place and collective in _IN_PLACE:
            inner, outer = _IN_PLACE[collective]
            tensors[inner] = tensors[outer][case.rank * case.length :][: case.length]
        self.tensors = SimpleNamespace(**tensors)
        self.call = functools.partial(form.call, forms.function(form), case, self.tensors)

    def fill(self) -> None:
        """What a result must hold is not there before the call."""
        for buffer, tensor in self._pairs():
            if buffer.before is None:
                tensor.copy_(complement(buffer.after))
        for buffer, tensor in self._pairs():  # subtle: after the results, which may overlap
            if buffer.before is not None:
                tensor.copy_(buffer.before)

    def wrong(self) -> int:
        """How many elements of the result are not what they must be."""
        found = 0
        for buffer, tensor in self._pairs("input"):
            if buffer.after is not ANYTHING and tensor.numel():
                differs = bits(tensor) != bits(buffer.after)
                found += int(differs.view(-1, tensor.itemsize).any(1).sum())
        return found

    def _pairs(self, without: str | None = None):
        for name, part in self.plan.items():
            if part is not None and not (without and name.startswith(without)):
                tensors = vars(self.tensors)[name]
                several = isinstance(part, list)
                yield from zip(part, tensors, strict=True) if several else [(part, tensors)]


def _empty(part, device):
    if isinstance(part, list):
        return [_empty(one, device) for one in part]
    if not isinstance(part, Buffer):
        return part
    model = part.before if part.after is ANYTHING else part.after
    return torch.empty_like(model, device=device)


@dataclass(frozen=True)
class Table:
    """What was measured, and where. `rows` has a list for each collective."""

    backend: str
    device: str
    ranks: int
    request: Request
    rows: dict[str, list[Row]]

    @property
    def wrong(self) -> int:
        rows = (row for rows in self.rows.values() for row in rows)
        return sum(one.wrong for row in rows for one in row.figures.values())


def measure(request: Request, world: World) -> Table:
    return table(request, launch_in(world, in_ranks, (request,), diagnose=False))


def in_ranks(
    rank: int, n: int, device: torch.device, request: Request
) -> tuple[str, str, list[dict[str, tuple[float, int]]]]:
    """A step: the backend, the device, and for each collective and size what this rank measured.

    That is, for each form of the call, the seconds of one call and the number of wrong elements.
    """
    found = []
    for collective in request.collectives:
        for nbytes in request.sizes:
            dtype = values.DTYPES[request.dtype]
            count = elements(collective, nbytes, dtype.itemsize, n)
            world = rank, tuple(range(n)), request.root, dist.group.WORLD, device
            op = request.op if calls.CALLS[FORMS[collective]].reduces else None
            case = Sized(*world, dtype, op, "", elements=count)
            places = [place for place in PLACES if place not in missing(collective)]
            found.append({place: _measured(collective, case, place, request) for place in places})
    return dist.get_backend(), device.type, found


def _measured(collective: str, case: Sized, place: str, request: Request) -> tuple[float, int]:
    """The seconds of a call, and the number of wrong elements of one more."""
    trial = Trial(collective, case, in_place=place == "in-place")
    trial.fill()
    for _ in range(request.warmup):
        trial.call()
    dist.barrier()
    _synchronize(case.device)
    begin = time.perf_counter()
    for _ in range(request.iters):
        trial.call()
    _synchronize(case.device)
    seconds = (time.perf_counter() - begin) / request.iters
    trial.fill()
    # Nobody may write into this rank's buffers before they are filled. (GPUs can.)
    dist.barrier()
    trial.call()
    _synchronize(case.device)
    return seconds, trial.wrong()


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table(request: Request, by_rank: list[tuple]) -> Table:
    """From what `in_ranks` returns on all ranks. As in nccl-tests, a time is the mean of all."""
    n, (backend, device, _) = len(by_rank), by_rank[0]
    measured = iter(zip(*(found for *_, found in by_rank), strict=True))
    rows = {
        collective: [_row(collective, nbytes, next(measured), request) for nbytes in request.sizes]
        for collective in request.collectives
    }
    return Table(backend, device, n, request, rows)


def _row(collective: str, nbytes: int, ranks: tuple[dict, ...], request: Request) -> Row:
    call, itemsize = calls.CALLS[FORMS[collective]], values.DTYPES[request.dtype].itemsize
    count = elements(collective, nbytes, itemsize, len(ranks))
    whole = size(collective, count, itemsize, len(ranks))
    by_place = {}
    for place in ranks[0]:
        seconds, wrong = zip(*(rank[place] for rank in ranks), strict=True)
        mean = statistics.fmean(seconds)
        by_place[place] = figures(collective, whole, len(ranks), mean, sum(wrong))
    return Row(
        collective,
        whole,
        count,
        TYPES.get(request.dtype, request.dtype),
        OPS.get(request.op, request.op.lower()) if call.reduces else "none",
        request.root if call.peer else -1,
        by_place,
    )


def as_text(measured: Table) -> str:
    about = f"{measured.ranks} ranks, {measured.backend} on {measured.device}"
    times = f"{measured.request.iters} calls timed together after {measured.request.warmup} others"
    parts = [
        f"# {collective}: {about}, {times}\n{text(rows, missing(collective))}"
        for collective, rows in measured.rows.items()
    ]
    return "\n\n".join(parts)


def as_json(measured: Table) -> str:
    return json.dumps(asdict(measured), indent=1) + "\n"


def as_csv(measured: Table) -> str:
    return csv_text([row for rows in measured.rows.values() for row in rows])


def curves(measured: Table) -> dict[str, list[tuple[int, float, float]]]:
    """For the picture: bytes, microseconds and GB/s of each size, by collective and place."""
    return {
        f"{collective}, {place}": [
            (row.size, row.figures[place].time, row.figures[place].busbw) for row in rows
        ]
        for collective, rows in measured.rows.items()
        for place in PLACES
        if place in rows[0].figures
    }
