"""Whether a model has memorized the masks that it was trained with."""
