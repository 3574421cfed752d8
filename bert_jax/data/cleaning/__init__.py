"""Cleaning of a corpus: pure functions of the paragraphs of a document, which `prepare` applies before tokenization."""
