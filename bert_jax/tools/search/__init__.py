"""Search by vectors: documents, the index of a corpus, ways to search it, and what they are measured by."""
