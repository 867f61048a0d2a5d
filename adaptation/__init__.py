"""Adapting a trained encoder to other text: its vocabulary, its weights, and a report on what changed."""
