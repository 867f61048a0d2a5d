"""The programs: one for each verb of `clozebert`, with flags and messages; the work is done in the other folders."""
