"""`collectives bench bus`: the columns are those of nccl-tests, and #wrong counts what is wrong."""

import csv
import json
from dataclasses import replace

import pytest
import torch.distributed as dist
import wrong_collectives
from our_backends import needs_mpi
from processes import finished
from typer.testing import CliRunner

from collectives import launch
from collectives.backends import availability
from collectives.bench import bus, bus_table
from collectives.bench.bus import FORMS
from collectives.cli import app
from collectives.cli.bus import size_in_bytes
from collectives.pictures import bandwidth
from collectives.semantics import forms

REQUEST = bus.Request(("all_reduce",), begin=1024, end=4096, factor=4, iters=2, warmup=1)
EVERY = replace(REQUEST, collectives=tuple(FORMS))


# The definitions. A row of nccl-tests on 16 H200 reads
#   1024  256  float  sum  -1  45.06  0.02  0.04  0  43.74  0.02  0.04  0
# and one of its all_gather on 3 ranks
#   17179869168  1431655764  float  none  -1  496916  34.57  23.05  0  ...


@pytest.mark.parametrize(
    ("collective", "n", "nbytes", "us", "algbw", "busbw"),
    [
        ("all_reduce", 16, 1024, 45.06, "0.02", "0.04"),
        ("all_reduce", 8, 10737418240, 80545.0, "133.31", "233.29"),
        ("all_gather", 3, 17179869168, 496916, "34.57", "23.05"),
        ("broadcast", 3, 17179869168, 496916, "34.57", "34.57"),
    ],
)
def test_bandwidths_are_those_that_nccl_tests_prints(collective, n, nbytes, us, algbw, busbw):
    found = bus_table.figures(collective, nbytes, n, us / 1e6, 0)
    assert found.time == pytest.approx(us)
    assert (f"{found.algbw:.2f}", f"{found.busbw:.2f}") == (algbw, busbw)


@pytest.mark.parametrize(
    ("collective", "nbytes", "n", "count", "size"),
    [
        ("all_reduce", 1024, 16, 256, 1024),
        ("broadcast", 1023, 3, 255, 1020),
        ("all_gather", 2**34, 3, 1431655764, 17179869168),
        ("all_to_all", 1024, 16, 16, 1024),
        ("reduce_scatter", 60, 4, 0, 0),
    ],
)
def test_the_size_is_that_of_the_whole_array_and_the_count_that_of_a_rank(
    collective, nbytes, n, count, size
):
    assert bus_table.elements(collective, nbytes, 4, n) == count
    assert bus_table.size(collective, count, 4, n) == size


def measured(collective, nbytes, *ranks):
    """The table of one row. `ranks`: what each rank measured, by place."""
    request = replace(REQUEST, collectives=(collective,), begin=nbytes, end=nbytes)
    return bus.table(request, [("gloo", "cpu", [one]) for one in ranks])


def test_the_time_is_the_mean_of_all_ranks_and_wrong_elements_are_added_up():
    found = measured("all_reduce", 4000, {"in-place": (1e-6, 2)}, {"in-place": (3e-6, 3)})
    (row,) = found.rows["all_reduce"]
    assert row.figures["in-place"] == bus_table.Figures(pytest.approx(2), 2.0, 2.0, 5)
    assert found.wrong == 5


def test_a_line_of_the_text_has_the_columns_of_nccl_tests():
    both = {"out-of-place": (123.46e-6, 0), "in-place": (20e-3, 7)}
    *_, units, line, last = bus.as_text(measured("all_gather", 6400, both, both)).split("\n")
    assert units.split() == ["#", "(B)", "(elements)", *("(us)", "(GB/s)", "(GB/s)") * 2]
    figures = ["123.5", "0.05", "0.03", "0", "20000", "0.00", "0.00", "14"]
    assert line.split() == ["6400", "800", "float", "none", "-1", *figures]
    assert last == "# average bus bandwidth: 0.01304 GB/s"


def test_a_form_that_does_not_exist_is_explained():
    text = bus.as_text(measured("all_reduce", 4000, {"in-place": (1e-6, 0)}))
    assert text.count(" N/A ") >= 4
    assert "# out-of-place: N/A, because dist.all_reduce always works in place" in text
    assert bus.missing("all_to_all") == {"in-place": "dist.all_to_all_single has no in-place form"}
    assert bus.missing("all_gather") == bus.missing("reduce_scatter") == {}


def test_sizes_are_read_as_in_nccl_tests():
    assert [size_in_bytes(text) for text in ("8", "1K", "32M", "1G", "64KiB", "1kB")] == [
        *(8, 2**10, 2**25, 2**30, 2**16, 1000)
    ]
    assert replace(REQUEST, begin=8, end=100, factor=3).sizes == [8, 24, 72]


# Runs


@pytest.mark.parametrize("backend", ["gloo", "by_hand", pytest.param("mpi", marks=needs_mpi)])
def test_nothing_is_wrong_in_any_collective_at_any_place(backend):
    found = bus.table(EVERY, launch(bus.in_ranks, 3, args=(EVERY,), backend=backend))
    assert (found.wrong, found.ranks, found.backend) == (0, 3, backend)
    places = {name: list(rows[0].figures) for name, rows in found.rows.items()}
    assert places == {
        name: [place for place in bus_table.PLACES if place not in bus.missing(name)]
        for name in FORMS
    }


WRONG = {
    "all_reduce": wrong_collectives.last_rank_lost,
    "broadcast": wrong_collectives.noop,
    "reduce": wrong_collectives.last_rank_lost,
    "all_gather_single": wrong_collectives.all_gather_single_permutes,
    "reduce_scatter_single": wrong_collectives.not_reduced,
    "all_to_all_single": wrong_collectives.input_returned,
    "gather": wrong_collectives.gather_permutes,
    "scatter": wrong_collectives.scatter_permutes,
}


def test_a_wrong_collective_has_wrong_elements_in_every_row():
    def wrong(rank, n, device):
        for name, make in WRONG.items():
            name = forms.called(forms.FORMS[name])
            setattr(dist, name, make(getattr(dist, name)))
        return bus.in_ranks(rank, n, device, EVERY)

    for rows in bus.table(EVERY, launch(wrong, 3, backend="gloo")).rows.values():
        for row in rows:
            for place, one in row.figures.items():
                assert one.wrong > 0, (row.collective, place)


def test_every_single_wrong_element_counts():
    def damaged(rank, n, device, request):
        real = dist.all_reduce

        def all_reduce(tensor, *args, **kwargs):
            real(tensor, *args, **kwargs)
            if rank == 1:
                tensor[[0, -1]] += 1

        dist.all_reduce = all_reduce
        return bus.in_ranks(rank, n, device, request)

    found = bus.table(REQUEST, launch(damaged, 2, args=(REQUEST,), backend="gloo"))
    assert [row.figures["in-place"].wrong for row in found.rows["all_reduce"]] == [2, 2]


@pytest.mark.parametrize("op", ["AVG", "MAX"])
def test_every_dtype_is_judged_by_bits(op):
    def judge(rank, n, device):
        found = {}
        for dtype in ("float16", "bool", "float8_e5m2", "complex64", "int64"):
            for collective in ("all_gather", "broadcast"):
                request = replace(REQUEST, collectives=(collective,), dtype=dtype, op=op)
                *_, rows = bus.in_ranks(rank, n, device, request)
                found[dtype, collective] = [one["in-place"][1] for one in rows]
        return found

    (found, *_) = launch(judge, 2, backend="by_hand")
    assert set(map(tuple, found.values())) == {(0, 0)}


def command(*words):
    return CliRunner().invoke(app, ["bench", "bus", *words])


def test_the_command_prints_and_writes_the_same_rows(tmp_path):
    pytest.importorskip("matplotlib")
    files = [tmp_path / name for name in ("bus.csv", "bus.json", "bus.png")]
    flags = [word for file in files for word in (f"--{file.suffix[1:]}", str(file))]
    flags[-2] = "--plot"
    words = ["all_reduce", "all_gather", "-b", "1K", "-e", "4K", "-n", "2", "--backend", "gloo"]
    done = command(*words, "--iters", "2", *flags)
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines() if line[:1] == " "]
    rows = list(csv.DictReader(files[0].open()))
    assert [line[:5] for line in lines] == [
        [row[name] for name in ("size", "count", "type", "redop", "root")] for row in rows
    ]
    document = json.loads(files[1].read_text())
    assert (document["backend"], document["ranks"]) == ("gloo", 2)
    figures = [row["figures"]["in-place"] for rows in document["rows"].values() for row in rows]
    assert [float(row["in-place busbw (GB/s)"]) for row in rows] == [
        one["busbw"] for one in figures
    ]
    assert rows[0]["out-of-place time (us)"] == ""
    assert files[2].read_bytes().startswith(b"\x89PNG")


def test_the_command_ends_with_1_if_elements_are_wrong(monkeypatch):
    found = measured("all_reduce", 4000, {"in-place": (1e-6, 2)})
    monkeypatch.setattr(bus, "measure", lambda *args: found)
    assert command("-b", "4000", "-e", "4000").exit_code == 1


def test_a_picture_leaves_out_arrays_without_bytes(tmp_path):
    pytest.importorskip("matplotlib")
    bandwidth.draw({"a": [(0, 1, 0), (8, 2, 3)], "b": [(0, 1, 0)]}, "2 ranks", tmp_path / "x.svg")
    assert "svg" in (tmp_path / "x.svg").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-b", "1M", "-e", "1K"), "-b 1048576 is more than -e 1024"),
        (("-b", "2"), "an element of float32 has 4 bytes"),
        (("-f", "1"), "greater than or equal to 2"),
        (("-b", "x"), "'x' is no size"),
        (("allreduce",), "did you mean 'all_reduce'?"),
        (("--dtype", "float31"), "did you mean 'float32'?"),
        (("--op", "BAND"), "BAND has no meaning for float32"),
        (("--root", "4"), "the ranks are 0 to 3"),
        (("--backend", "glo"), "did you mean 'gloo'?"),
        (("--timeout", "0"), "not a time limit"),
        (("--csv", "/no/such/folder/x.csv"), "x.csv cannot be written: No such file or directory"),
        (("--plot", "x.jpeg"), "ends in .png or .svg"),
    ],
    ids=lambda one: "_".join(one) if isinstance(one, tuple) else "",
)
def test_bad_words_are_explained(words, message):
    done = command(*words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.slow  # each rank imports torch
@pytest.mark.parametrize(
    ("launcher", "backend"),
    [
        ("torchrun --nproc-per-node 2", "gloo"),
        pytest.param(f"{availability.mpiexec()} -n 2 python", "mpi", marks=needs_mpi),
    ],
)
def test_the_ranks_may_be_those_of_a_launcher_and_one_of_them_prints(launcher, backend):
    done = finished(f"{launcher} -m collectives bench bus -b 4K -e 4K --iters 2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"# all_reduce: 2 ranks, {backend} on cpu")
    assert len([line for line in lines if line[:1] == " "]) == 1
