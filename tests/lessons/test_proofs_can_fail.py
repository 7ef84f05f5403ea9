"""The proofs in the lessons work: with a wrong collective in its place, every lesson that uses it
fails.
"""

import re

import pytest
from hand_made import works_on_gloo
from planted import Planted, by_proof, unnoticed
from wrong_collectives import WRONG

from collectives import LaunchError
from collectives.course import chapters, files

IMPORT = "import torch.distributed as dist\n"


def planted(wrong: str, lesson: str) -> Planted:
    """The lesson with this wrong collective in the place of the right one."""
    call = f"dist.{WRONG[wrong][0]}"
    replaced = f"import wrong_collectives\n{call} = wrong_collectives.WRONG[{wrong!r}][1]({call})\n"
    return Planted(files.find(lesson), IMPORT, IMPORT + replaced)


def code(lesson: str) -> str:
    """The lesson without its prose, where the solution of an exercise may make other calls."""
    return re.sub(r"^#.*$", "", files.find(lesson).read_text(encoding="utf-8"), flags=re.MULTILINE)


def uses(lesson: str, wrong: str) -> bool:
    source = code(lesson)
    if wrong == "all_reduce that sums whatever is asked" and not re.search(
        r"all_reduce\([^\n]*ReduceOp\.(?!SUM)", source
    ):
        return False  # nothing else was asked
    return re.search(rf"\bdist\.{WRONG[wrong][0]}\(", source) is not None


LESSONS = chapters.read()["calls"].names
# The lesson fails, but not by its proof: it needs what the wrong call left undone.
NO_PROOF = [
    # Rank 0 is no member, so it stays away from a broadcast that now needs it.
    ("new_group that is the whole world", "weight_update"),
    # The last rank meets the others in another call, or they wait for it.
    ("new_group that is the whole world", "barrier"),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.replace(" ", "_"))
def test_every_lesson_that_makes_this_call_notices_the(wrong):
    if not works_on_gloo(WRONG[wrong][0]):
        pytest.skip(f"gloo of this torch has no {WRONG[wrong][0]}")
    names = [name for name in LESSONS if uses(name, wrong) and (wrong, name) not in NO_PROOF]
    assert unnoticed([planted(wrong, name) for name in names], by_proof) == {}


@pytest.mark.parametrize(("wrong", "lesson"), NO_PROOF, ids=[lesson for _, lesson in NO_PROOF])
def test_a_lesson_that_needs_what_the_wrong_call_left_undone_fails(wrong, lesson):
    with pytest.raises(LaunchError, match=r"raised|hung"):
        by_proof([planted(wrong, lesson)], timeout=4.0)


def test_every_call_of_the_lessons_has_a_wrong_version():
    """A lesson that starts to use another call needs a wrong one here."""
    called = re.findall(r"\bdist\.([a-z_]+)\(", "\n".join(map(code, LESSONS)))
    collectives = {call for call in called if not call.startswith("get_")}
    missing = collectives - {"destroy_process_group"} - {call for call, _ in WRONG.values()}
    assert not missing, "add a wrong version to tests/support/wrong_collectives.py"
