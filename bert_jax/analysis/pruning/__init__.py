"""Which layers a model can lose."""
