"""Checkpoints: their folders, what is saved in them, and how they are checked for damage."""
