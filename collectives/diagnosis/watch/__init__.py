"""The processes under diagnosis: which ranks they are, how they end, when nothing moves."""
