"""A lab: several machines on this one, made of Linux network namespaces."""

from collectives.launcher.hosts.lab import Lab

__all__ = ["Lab"]
