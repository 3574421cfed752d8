"""Text before tokens: readers of many formats, sentences, cleaning, contamination and duplicates."""
