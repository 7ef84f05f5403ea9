"""Commands that write into the repository: notebooks, tables and the README's picture."""
