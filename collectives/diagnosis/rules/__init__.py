"""From what every rank called to a verdict. Pure: nothing here starts or reads a process."""
