"""Fine-tuning: sequence classification, regression and tagging, from labelled files to a model with its scores."""
