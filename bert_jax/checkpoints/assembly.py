"""A state from the local copies of several hosts: which of them is used, and who gives what to whom."""

import dataclasses
from typing import Any

import jax
import numpy as np
from absl import logging

from bert_jax.checkpoints.fingerprint import leaf_paths
from bert_jax.checkpoints.local_copy import LocalCopy
from bert_jax.checkpoints.parts import Parts, exchanged, joined, needed, shape_of
from bert_jax.checkpoints.record import Damaged
from bert_jax.checkpoints.walk_back import reason, together
from bert_jax.devices.hosts import any_failure, decide


@dataclasses.dataclass(frozen=True)
class Assembly:
    """Copies of one step that have every part of every array between them."""

    content: dict[str, Any]
    """The record, on every host."""
    givers: dict[str, list[int]]
    """The host that gives a part to those that lack it, by the path of the array and the number of the part."""
    mine: dict[tuple[str, int], LocalCopy]
    """The parts on this host."""

    @classmethod
    def of(cls, copies: list[LocalCopy], problems: list[str]) -> "Assembly":
        """Return what the copies of this host make together with those of the others; every host calls this.

        Args:
          problems: of the copies of this host that cannot be used.

        Raises:
          Damaged: a part is missing; raised on every host.
        """
        offers = [
            {
                "id": copy.id,
                "held": copy.held,
                "parts": {path: len(boxes) for path, boxes in copy.layout.items()},
            }
            for copy in copies
        ]
        verdict = decide({"offers": offers, "problems": problems}, _choose)
        if "problem" in verdict:
            raise Damaged(verdict["problem"])
        copies = [copy for copy in copies if copy.id == verdict["id"]]
        content = {name: value for name, value in copies[0].content.items() if name != "held"} if copies else None
        content = decide(content, lambda values: next(value for value in values if value is not None))
        mine = {(path, number): copy for copy in copies for path, numbers in copy.held.items() for number in numbers}
        return cls(content, verdict["givers"], mine)

    def arrays(self, abstract: Any) -> Any:
        """Return the arrays for `abstract`, a pytree of ShapeDtypeStructs with shardings; every host calls this.

        Raises:
          Damaged: a part that was good can no longer be read here, and no host needs any other's; raised on every host.
        """
        leaves, boxes = leaf_paths(abstract), self.content["layout"]
        lacks = (
            path
            for path, leaf in leaves.items()
            for number in needed(leaf, boxes[path])
            if (path, number) not in self.mine
        )
        if any_failure(next(lacks, None)) is not None:
            logging.info("the hosts exchange their local copies")
            found = [self._exchanged_array(path, leaf) for path, leaf in leaves.items()]
        else:
            found = together(lambda: [self._own_array(path, leaf) for path, leaf in leaves.items()])
        return jax.tree.unflatten(jax.tree.structure(abstract), found)

    def _own_array(self, path: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        boxes = self.content["layout"][path]
        return joined(leaf, boxes, {n: self.mine[path, n].read(path, n) for n in needed(leaf, boxes)})

    def _exchanged_array(self, path: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        boxes, parts = self.content["layout"][path], Parts()
        wanted = needed(leaf, boxes)
        for number, box in enumerate(boxes):
            given = self._given(path, number) if self.givers[path][number] == jax.process_index() else None
            values = exchanged(shape_of(box), np.dtype(leaf.dtype), given)
            if number in wanted:
                parts[number] = values
        return joined(leaf, boxes, parts)

    def _given(self, path: str, number: int) -> np.ndarray | None:
        try:
            return self.mine[path, number].read(path, number)
        except (OSError, Damaged) as error:  # the others wait for this part; the fingerprints will show that it is zero
            logging.warning("%s", reason(error))
            return None


def _choose(values: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the id of the copies to use and the hosts that give their parts, or the reason why there are none."""
    problems = [
        f"host {host}: {problem}" if len(values) > 1 else problem
        for host, value in enumerate(values)
        for problem in value["problems"]
    ]
    for id in sorted({offer["id"] for value in values for offer in value["offers"]}):
        parts, holders = {}, {}
        for host, value in enumerate(values):
            for offer in (offer for offer in value["offers"] if offer["id"] == id):
                parts = offer["parts"]
                for path, numbers in offer["held"].items():
                    for number in numbers:
                        holders.setdefault((path, number), []).append(host)
        every = [(path, number) for path, count in parts.items() for number in range(count)]
        if missing := [path for path, number in every if (path, number) not in holders]:
            problems.append(f"no host has part of the array {missing[0]}")
            continue
        givers: dict[str, list[int]] = {}
        for turn, (path, number) in enumerate(every):
            hosts = holders[path, number]
            givers.setdefault(path, []).append(hosts[turn % len(hosts)])
        return {"id": id, "givers": givers}
    return {"problem": "; ".join(problems) or "it is gone"}
