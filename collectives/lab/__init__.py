"""A lab: several machines on this one, made of Linux network namespaces."""
