"""The programs, one for each verb of `clozebert`: flags and messages. The work is done in the other folders."""
