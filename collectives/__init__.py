"""Learn torch.distributed's collectives by running them, and check a backend against them."""

from collectives.launcher.failure import LaunchError
from collectives.launcher.launch import launch
from collectives.spec.check import Mismatch, check
from collectives.spec.check_training import check_training

__all__ = ["LaunchError", "Mismatch", "check", "check_training", "launch"]
