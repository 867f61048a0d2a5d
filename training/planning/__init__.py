"""Planning a run: memory and time, by formulas and by measuring, and how long to train."""
