"""Learn torch.distributed's collectives by running them, and check a backend against them."""

from collectives.launcher.failure import LaunchError
from collectives.launcher.launch import launch
from collectives.spec.check import Mismatch, check

__all__ = ["LaunchError", "Mismatch", "check", "launch"]
