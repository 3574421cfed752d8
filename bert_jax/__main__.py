"""`python -m bert_jax` is the command `bert-jax`."""

from bert_jax.cli import main

if __name__ == "__main__":
    main()
