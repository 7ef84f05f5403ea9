"""What all tests share."""

import pytest

from collectives.launcher import server


@pytest.fixture(scope="session", autouse=True)
def server_of_the_ranks():
    """It imports the compiler, as DistributedDataParallel and the functional collectives do, once for the ranks of all tests."""
    server.start_server(("torch._dynamo", "torch.distributed.nn", "collectives.spec.probe"))
