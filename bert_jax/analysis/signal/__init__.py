"""A model before its first step: sizes of states and gradients, positions, and what a step costs."""
