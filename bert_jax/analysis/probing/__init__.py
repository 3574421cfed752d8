"""What linear probes read from each layer."""
