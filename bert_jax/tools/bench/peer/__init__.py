"""Programs that run in an environment of the user's, by their files: it has torch and transformers, and no bert_jax."""
