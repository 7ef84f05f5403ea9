"""`collectives check-training` on the script of docs/your-script.md, with its faults and without."""

import json
import re

import pytest
import torch
from processes import children, finished, free_port
from repository import ROOT

from tools import script_page

CURED = (ROOT / "examples" / "blog" / "cured.py").read_text(encoding="utf-8")

# Which faults are planted at once, so that three starts show several of them.
TOGETHER = [
    tuple(name for name in script_page.AT_ONCE if name != "device_by_rank"),
    ("no_sampler", "data_parallel_left_over", "every_rank_saves"),
    ("rank_0_validates_alone",),
    ("collective_on_one_rank",),
    ("shuffle_beside_sampler",),
]


# This one is planted in a script that starts its ranks itself.
SPAWNED = ("collective_on_one_rank",)


def spawned(script):
    start = f"""    os.environ["MASTER_PORT"] = "{free_port()}"
    torch.multiprocessing.spawn(main, nprocs=2)
"""
    script = script.replace("def main():", "def main(_):")
    return script.replace("    main()\n    dist.destroy_process_group()\n", start)


def checked(folder, script, *words):
    """What the command wrote, and its status."""
    (folder / "train.py").write_text(script)
    command = ["collectives", "check-training", "--json", "found.json", *words, "--", "train.py"]
    done = finished(command, cwd=folder, timeout=300)
    return json.loads((folder / "found.json").read_text()), done


def wrong(found):
    return {name: one for name, one in found["findings"].items() if one["state"] == "wrong"}


@pytest.mark.slow
@pytest.mark.parametrize("names", TOGETHER, ids=lambda names: names[0])
def test_each_fault_is_found_in_its_line_as_the_page_says(names, tmp_path):
    script = script_page.planted(*names)
    if names == SPAWNED:
        script = spawned(script)
    found, done = checked(tmp_path, script)
    assert done.returncode == 1, done.stderr
    assert set(wrong(found)) == set(names)
    for name, finding in wrong(found).items():
        assert finding["says"].startswith(script_page.FAULTS[name]["told"])
        assert re.fullmatch(r"train\.py:\d+", finding["at"])


def test_all_faults_but_that_of_gpus_are_planted_and_none_twice():
    planted = [name for names in TOGETHER for name in names]
    assert sorted([*planted, "device_by_rank"]) == sorted(script_page.FAULTS)


@pytest.mark.slow
def test_the_cured_script_is_fine_and_nothing_is_left_of_it(tmp_path):
    before = children()
    (tmp_path / "train.py").write_text(CURED)
    alone = finished("torchrun --standalone --nproc-per-node 2 train.py", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    # The reader has a file of the name that the script writes; it resumes at another one.
    (tmp_path / "last.pt").write_bytes(b"the reader's own")
    script = CURED.replace("last.pt", "resumed.pt", 2)
    found, done = checked(tmp_path, script)
    assert (done.returncode, wrong(found)) == (0, {}), done.stderr
    assert (found["equal_weights"], found["equal_buffers"]) == (True, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.json", "last.pt", "train.py"]
    assert (tmp_path / "last.pt").read_bytes() == b"the reader's own"
    assert children() <= before


@pytest.mark.slow
def test_ranks_that_average_no_gradients_are_told_although_no_fault_is_found(tmp_path):
    past_ddp = CURED.replace(
        "model(images.to(device)), labels", "model.module(images.to(device)), labels"
    )
    found, done = checked(tmp_path, past_ddp)
    assert (done.returncode, wrong(found), found["equal_weights"]) == (1, {}, False)
    assert done.stdout.rstrip().endswith("0 faults found, and the ranks train several models")


def test_cured_has_at_most_90_lines_and_those_that_the_page_keeps():
    assert len(CURED.splitlines()) <= 90
    assert [one["line"] for one in script_page.KEPT if one["line"] not in CURED] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "import torch\nweight = torch.ones(1, requires_grad=True)\n"
            "optimizer = torch.optim.SGD([weight], 0.1)\nfor _ in range(2):\n"
            "    weight.sum().backward()\n    optimizer.step()\ntorch.save({}, 'a.pt')",
            "calls nothing of torch.distributed",
        ),
        ("import torch\ntorch.multiprocessing.spawn(print, nprocs=3)", "spawns 3 ranks"),
        (
            "import os, torch\nif os.environ['RANK'] == '0': torch.save({}, '/nowhere/a.pt')",
            "saves to /nowhere/a.pt",
        ),
        (
            "import torch\ntorch.load('mine.pt')\n"
            "torch.distributed.init_process_group('gloo')\ntorch.distributed.barrier()",
            "takes no step after it has loaded mine.pt",
        ),
    ],
    ids=["ranks that do not communicate", "spawn", "a file elsewhere", "no step left"],
)
def test_a_script_that_cannot_run_here_is_told_why(script, why, tmp_path):
    torch.save({}, tmp_path / "mine.pt")
    _, done = checked(tmp_path, script, "--timeout", "60")
    assert done.returncode == 3, done.stdout
    assert why in done.stdout


@pytest.mark.parametrize("words", ["-- nowhere.py", "-n 1 -- train.py"])
def test_bad_usage_is_2(words, tmp_path):
    (tmp_path / "train.py").touch()
    done = finished(f"collectives check-training {words}", cwd=tmp_path)
    assert done.returncode == 2, done.stdout
