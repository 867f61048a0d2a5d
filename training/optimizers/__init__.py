"""Optimizers: which one takes which parameter, Muon, learning-rate schedules, the state in checkpoints."""
