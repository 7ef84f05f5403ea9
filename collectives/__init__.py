"""Learn the collectives of torch.distributed by running them, and check that a backend does what it says."""

from collectives.failure import LaunchError
from collectives.launch import launch
from collectives.proof import Mismatch, check

__all__ = ["LaunchError", "Mismatch", "check", "launch"]
