"""Benchmarks whose contestants, ours and others, take turns in one run on one machine."""
