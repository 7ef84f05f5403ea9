"""Where a matrix or a table of bandwidths that somebody else has measured goes."""

import json
import re
import shutil

from hand_made import cell, matrix
from repository import ROOT

from collectives.matrix import recorded
from tools import records_table
from tools.first_gpu_run import archive
from tools.first_gpu_run.perform import Ended

OURS = ROOT / "collectives" / "matrix" / "matrices" / "torch-2.13.json"


def test_a_matrix_gets_a_column_for_each_number_of_ranks(tmp_path):
    shutil.copy(OURS, tmp_path / "matrix-gloo-cpu-2026-11.json")
    head, _, *rows = records_table.matrices(tmp_path).splitlines()
    assert head.count("[gloo, cpu](matrix-gloo-cpu-2026-11.json)") == 3
    assert "| `barrier` | works 5 | works 5 | works 5 |" in rows


def test_an_archive_of_make_gpu_gets_the_columns_of_its_matrices(tmp_path):
    folder = tmp_path / "found"
    folder.mkdir()
    ended = {name: Ended(name, 0, 1.0) for name in ("quick_1", "quick_gloo")}
    archive.write_state(folder, ended)
    for name, ranks in (("quick_1.json", 1), ("quick_gloo.json", 2)):
        (folder / name).write_text(recorded.as_json(matrix(cell(world_size=ranks))))
    archive.pack(folder, tmp_path / "first-gpu-run-h100-2027-01.zip", str)
    head, _, *_ = records_table.matrices(tmp_path).splitlines()
    assert re.findall(r"2027-01.zip\), (\d) ranks", head) == ["1", "2"]


def test_a_table_of_bandwidths_gets_a_row_for_each_collective(tmp_path):
    figures = [{"figures": {"in-place": {"busbw": value}}} for value in (0.5, 2.25, 1.0)]
    found = {"backend": "nccl", "device": "cuda", "ranks": 8, "rows": {"all_reduce": figures}}
    (tmp_path / "bus-nccl-cuda-2026-12.json").write_text(json.dumps(found))
    assert "| [nccl, cuda](bus-nccl-cuda-2026-12.json) | 8 | `all_reduce` | 2.25 |" in (
        records_table.bandwidths(tmp_path)
    )


def test_without_a_record_the_page_says_so(tmp_path):
    assert records_table.matrices(tmp_path) == "Nobody has sent a matrix yet."
    assert records_table.bandwidths(tmp_path) == "Nobody has sent a table of bandwidths yet."
