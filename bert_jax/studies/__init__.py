"""Studies: pre-trainings and fine-tunings that differ in one thing, as one table and one picture."""
