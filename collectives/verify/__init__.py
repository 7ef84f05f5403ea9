"""Ask a backend, whoever wrote it: `pytest --pyargs collectives.verify --backend X --import x`."""
