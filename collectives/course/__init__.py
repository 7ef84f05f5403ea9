"""Run a lesson or a mistake, and show what happened."""
