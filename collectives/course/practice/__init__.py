"""Exercises: the reader writes a function, and it is tried in ranks of its own."""
