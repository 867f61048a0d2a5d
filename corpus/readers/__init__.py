"""Reading texts: inputs, file formats, tables."""
