"""What a run stands on: the machine, the processes, signals, the watchdog."""
