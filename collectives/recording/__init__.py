"""Note each call that a rank makes, so that the note survives the rank."""
