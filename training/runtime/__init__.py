"""What a run stands on: the machine, the processes, leaving a pass early, the watchdog."""
