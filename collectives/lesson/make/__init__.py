"""Commands that write into the repository: the notebooks, and the generated parts of the documentation."""
