"""A pre-training run on several hosts, started and kept running: Cloud TPU, GKE, Slurm, processes of this machine."""
