"""The environment that the user names for a peer: looked at before anything is measured."""

import json
import subprocess

from bert_jax.errors import UserError

ASK = (
    "import json, torch, transformers; print(json.dumps({'torch': torch.__version__, "
    "'transformers': transformers.__version__, 'cuda': torch.cuda.is_available()}))"
)
SECONDS = 120  # importing torch from a cold disk


def peer_versions(python: str) -> dict[str, str | bool]:
    """Return the versions of torch and transformers in an environment, and whether torch can use a GPU there.

    Raises:
      UserError: `python` cannot be started, or lacks one of them.
    """
    remedy = (
        "give the Python of an environment made with: python -m venv peer && peer/bin/pip install torch transformers"
    )
    try:
        done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, timeout=SECONDS)
    except OSError as error:
        raise UserError(f"peer_python={python} cannot be started ({error.strerror}); {remedy}") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"peer_python={python} did not import torch within {SECONDS} seconds; {remedy}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
        raise UserError(f"peer_python={python} has no torch with transformers ({last:.200}); {remedy}")
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise UserError(
            f"peer_python={python} is no Python: it printed “{done.stdout.strip():.40}”; {remedy}"
        ) from None
