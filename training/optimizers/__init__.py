"""Optimizers: parameter groups, Muon, learning-rate schedules."""
