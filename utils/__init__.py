"""What every room may use: files, devices, memory. Not shipped with checkpoints."""
