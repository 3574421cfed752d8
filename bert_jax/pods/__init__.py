"""Starting a pre-training run on several hosts and keeping it running: Cloud TPU, GKE, Slurm, or processes of this machine."""
