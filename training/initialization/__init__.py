"""The model that a run starts from: new, loaded, or grown from a smaller one."""
