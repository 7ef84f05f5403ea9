"""Note each call that a rank makes, so that the note survives the rank.

The files here import each other, and `semantics`, by relative imports only. A program that
`collectives diagnose` runs loads them as `_collectives_recorder.recording` (see
startup/sitecustomize.py), because it may have a module `collectives` of its own.
"""
