"""Documents and paragraphs that a corpus holds more than once: found with bounded memory, on disk."""
