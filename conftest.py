"""`pytest --backend X` asks a backend; without it, pytest runs all tests of this repository."""

pytest_plugins = ["collectives.verify.plugin"]
