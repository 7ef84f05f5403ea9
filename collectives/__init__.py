"""Learn the collectives of torch.distributed by running them, and check that a backend does what it says."""

from collectives.launcher.failure import LaunchError
from collectives.launcher.launch import launch
from collectives.spec.check import Mismatch, check

__all__ = ["LaunchError", "Mismatch", "check", "launch"]
