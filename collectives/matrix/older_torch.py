"""What the matrix needs on a torch that is older than this package's oldest, to be recorded there: imported in every rank first.

collectives matrix --backend gloo --device cpu --import collectives.matrix.older_torch --json FILE.json
"""

import torch.distributed as dist


def _leave_it_to_the_end(group=None) -> None:
    """In place of `destroy_process_group`.

    gloo of torch 2.6 hangs there now and then (1 rank in 50), after any call, if the other rank is gone already. That would be
    blamed on the call, which had ended well; and the process is about to end anyway.
    """


dist.destroy_process_group = _leave_it_to_the_end
