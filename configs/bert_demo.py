"""The run of `make demo`: a small BERT on the documentation that Python itself carries.

bert-jax pretrain bert_demo --data.path=runs/demo/data/store --workdir=WORKDIR
"""

from bert_jax.cli.demo import demo_config


def get_config():
    return demo_config()
