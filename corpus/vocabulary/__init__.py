"""Changes of a tokenizer's vocabulary: extended by learned entries or given words, or trimmed to those in use."""
