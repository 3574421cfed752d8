"""Tools around training: runs and stores seen from outside, studies, plans, benchmarks, launches on pods."""
