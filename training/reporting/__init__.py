"""What a run tells: progress, curves, results, warnings."""
