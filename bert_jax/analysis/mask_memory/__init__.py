"""Whether a model has learned the masks that it was trained with by heart."""
