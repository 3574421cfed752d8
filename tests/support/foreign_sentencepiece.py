"""SentencePiece models that bert_jax has not trained."""

import sentencepiece


def foreign_model(path, **options):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat"] * 50),
        model_prefix=str(path),
        minloglevel=2,
        hard_vocab_limit=False,
        **{"vocab_size": 24, **options},
    )
    return path.with_name(path.name + ".model")
