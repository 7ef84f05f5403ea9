"""Which call works on which backend, measured cell by cell, and compared with what is claimed."""
