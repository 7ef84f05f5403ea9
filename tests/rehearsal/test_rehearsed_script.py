"""A training script that takes its GPU by its rank, on two machines with a played GPU each."""

import json

from processes import finished

from tools import script_page


def test_a_gpu_by_rank_is_found_where_each_rank_has_a_machine(gpus, tmp_path):
    gpus(2)
    for names in ("device_by_rank",), ():
        (tmp_path / "train.py").write_text(script_page.planted(*names))
        command = "collectives check-training --json found.json -- train.py"
        finished(command, env={"CUDA_VISIBLE_DEVICES": "0,1"}, cwd=tmp_path, timeout=300)
        findings = json.loads((tmp_path / "found.json").read_text())["findings"]
        wrong = {name: one["says"] for name, one in findings.items() if one["state"] == "wrong"}
        assert wrong == {name: script_page.FAULTS[name]["told"] for name in names}
