"""Benchmarks in which bert_jax and its competitors take turns within one run on one machine."""
