"""Models served by a thread of a Python that goes on, such as that of a notebook."""

import contextlib
import html
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bert_jax.config.serving import ServeConfig, name_of, named_models, need_libraries
from bert_jax.errors import UserError
from bert_jax.pretrained.model import PretrainedModel, load
from bert_jax.progress import progress_bar

if TYPE_CHECKING:
    from bert_jax.tools.serving.server import Server


WAYS = "give a model of bert_jax.load, its path or name, or a dict of either by name"


class Served:
    """Models that a thread of this process serves; made by `bert_jax.serve`, ended by `close` or by `with`.

    Attributes:
      url (str): address of the server.
    """

    def __init__(self, server: "Server", listener: socket.socket):
        self._server = server
        self.url: str = server.url
        self._thread: threading.Thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, name="serving", daemon=True
        )
        self._thread.start()
        with contextlib.ExitStack() as shown:
            move_to = None
            while not (server.started and server.engine.ready) and self._thread.is_alive():
                done, shapes = server.engine.warmed
                if shapes and move_to is None:
                    move_to = shown.enter_context(progress_bar("compiling shapes of batches", shapes))
                if move_to is not None:
                    move_to(done)
                time.sleep(0.01)
        if not self._thread.is_alive():
            server.status()
            raise UserError("the server has ended before it was ready; the log says why")

    def close(self) -> None:
        """Answer what was accepted, and end the server."""
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{', '.join(self._server.service.engine.models)} at {self.url}"

    def _repr_html_(self) -> str:
        """Return the playground as a frame, which a notebook on this machine shows; the address alone without it."""
        address = html.escape(self.url, quote=True)
        link = f'<a href="{address}" target="_blank" rel="noopener">{html.escape(repr(self))}</a>'
        if not self._server.options.playground:
            return link
        return f'{link}<iframe src="{address}/" title="playground" width="100%" height="720"></iframe>'


def serve(
    models: PretrainedModel | str | os.PathLike[str] | Mapping[str, PretrainedModel | str | os.PathLike[str]],
    config: ServeConfig = ServeConfig(port=0, access_log=False),
) -> Served:
    """Serve models from this process, such as a notebook, and return at once when they are ready.

    Args:
      models: a model, a place that `bert_jax.load` opens, or models and places by name.
      config: as `bert-jax serve` has them; by default a port that is free, and no line for each request.

    Raises:
      UserError: as `bert-jax serve`.
    """
    need_libraries("bert_jax.serve")
    from bert_jax.tools.serving.security import find_token
    from bert_jax.tools.serving.server import Server, listen

    config.check()
    token, listener = find_token(config), listen(config)
    with contextlib.ExitStack() as failed:
        failed.callback(listener.close)
        if isinstance(models, PretrainedModel):
            models = {name_of(models.path): models}
        else:
            named = models if isinstance(models, Mapping) else named_models([_place(models)])
            models = {name: _model(name, each) for name, each in named.items()}
        if not models:
            raise UserError("there are no models to serve; give one, a place, or models or places by name")
        found = Served(Server(models, config, token, listener), listener)
        failed.pop_all()
    return found


def _place(model: Any) -> str:
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    raise UserError(f"models is {type(model).__name__}; {WAYS}")


def _model(name: Any, model: Any) -> PretrainedModel:
    if not isinstance(name, str) or not name:
        raise UserError(f"a model has the name {name!r:.60}; {WAYS}")
    if isinstance(model, str | os.PathLike):
        return load(model)
    if not hasattr(model, "need_tokenizer"):
        raise UserError(f"the model {name:.60} is {type(model).__name__}; {WAYS}")
    return model
