"""What the trainer of examples/weight_update_engines says of each fault, for docs/engines.md.

python -m benchmarks.engine_faults [FAULT ...]
"""

import json
import sys
import tempfile
from pathlib import Path

from tests.support import played_engines

FILE = Path(__file__).parents[1] / "docs" / "engine_faults.json"


def calls(protocol: str) -> list[dict]:
    """When the requests and the broadcasts of one update began and ended."""
    with played_engines.engine(protocol) as healthy, tempfile.NamedTemporaryFile() as file:
        words = ["--updates", 1, "--bucket-mib", 0.05, "--record", file.name]
        status, last, _ = played_engines.trained(protocol, [healthy], *words)
        assert status == 0, last
        events = json.loads(Path(file.name).read_text("utf-8"))
    keys = ("lane", "began", "ended", "route", "status", "bytes")
    return [{key: one[key] for key in keys if key in one} for one in events]


def is_in_time(events: list[dict]) -> bool:
    """Whether a busy machine let the trainer see the end of each broadcast before the answer."""
    requests = [one for one in events if "/update_weights" in one.get("route", "")]
    sent = [one for one in events if one["lane"] == "broadcast"]
    return all(
        any(a["began"] < b["began"] < b["ended"] < a["ended"] for a in requests) for b in sent
    )


def picture(protocol: str) -> list[dict] | None:
    """The calls of an update that went as they should; None if no try did."""
    tries = (calls(protocol) for _ in range(10))
    return next((one for one in tries if is_in_time(one)), None)


def main() -> None:
    again = sys.argv[1:]  # only these, and the picture
    if unknown := set(again) - played_engines.faults().keys():
        sys.exit(f"{', '.join(sorted(unknown))}: no fault of examples/weight_update_engines.")
    found = json.loads(FILE.read_text("utf-8")) if again else {"limit": played_engines.LIMIT}
    for protocol in ("sglang", "vllm"):
        rows = found.setdefault(protocol, {})
        with played_engines.engine(protocol) as healthy:
            for fault, does in played_engines.faults().items():
                if again and fault not in again:
                    continue
                if why := played_engines.lacks(fault, protocol):
                    rows[fault] = {"does": does, "lacks": why}
                else:
                    rows[fault] = {"does": does, **played_engines.met(fault, protocol, healthy)}
                print(protocol, fault, rows[fault], flush=True)
        if (seen := picture(protocol)) is None:
            print(f"{protocol}: the machine is too busy for a new picture", file=sys.stderr)
        else:
            found.setdefault("calls", {})[protocol] = seen
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
