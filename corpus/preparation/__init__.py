"""Preparing a corpus: from texts to shards, here or in parts on several machines."""
