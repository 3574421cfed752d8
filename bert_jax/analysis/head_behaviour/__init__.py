"""What attention heads do over a corpus, and what they are worth."""
