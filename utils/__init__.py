"""Helpers that every part of the package may use: files, devices, memory. Not shipped with checkpoints."""
