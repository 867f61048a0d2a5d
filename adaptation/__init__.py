"""Domain adaptation of a trained encoder: its vocabulary, continued pretraining, and a report on what changed."""
