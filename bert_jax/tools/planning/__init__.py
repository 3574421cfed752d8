"""Plans: the steps of a run compiled for a machine that you do not have, with memory, transfers, time and cost."""
