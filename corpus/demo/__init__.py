"""The demonstration's corpus and its labelled data, made from the Python packages of this machine."""
