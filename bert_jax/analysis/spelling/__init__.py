"""How much spelling errors cost a model."""
