"""The lessons on model parallelism draw no pipeline that would hang."""

import pytest

from collectives.course import chapters, files

with files.imports_from(chapters.folder() / "model_parallel"):
    from pipeline_slots import PipelineSlots


def test_passes_that_wait_for_each_other_have_no_picture():
    """Rank 0 wants to go back before rank 1 has the micro-batch."""
    orders = [[("backward", 0), ("forward", 0)], [("forward", 0), ("backward", 0)]]
    with pytest.raises(ValueError, match="naive: ranks wait for each other in slot 0"):
        PipelineSlots.of("naive", orders)
