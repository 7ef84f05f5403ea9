"""Commands that write files of the repository: the notebooks, and parts of the documentation."""
