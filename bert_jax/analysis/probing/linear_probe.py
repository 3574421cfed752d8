"""Linear probes: logistic and linear regression on frozen states, trained until the gradient vanishes.

The features of one span are its state h; those of two are [a, b, a * b], as for the arcs of Liu et al. 2019, because
nothing linear in [a, b] alone can tell that two words belong together. Several layers are mixed before that, by
Σ softmax(s) h, with s learned along with the rest (Tenney et al. 2019), and the mix is scaled to the mean square of a
layer, so that the penalty does not put it at a disadvantage.
"""

import dataclasses

import numpy as np

PENALTIES = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4)
"""Strengths λ of λ/2 · |W|², from the strongest; that with the least loss on dev is taken."""
TOLERANCE = 1e-4
"""Largest component of the gradient of the mean loss at which training ends, in coordinates in which the curvature is
about one: the loss is then within some 1e-8 of its minimum per parameter."""
MOST_ITERATIONS = 2_000


@dataclasses.dataclass(frozen=True)
class LinearProbe:
    """A trained probe: scores are features · matrix + bias, of states that were standardized."""

    matrix: np.ndarray
    """float64 [features, C]; C is 1 for regression."""
    bias: np.ndarray
    """float64 [C]."""
    mix: np.ndarray
    """float64 [R]: share of each layer, which sum to 1."""
    scale: float
    """What the mix is multiplied by."""
    penalty: float
    gradient: float
    """Largest component of the gradient at the end, see TOLERANCE."""
    iterations: int

    @property
    def converged(self) -> bool:
        return self.gradient <= TOLERANCE

    def scores(self, states: np.ndarray) -> np.ndarray:
        """Return float64 [n, C] for standardized states [R, n, S, H]."""
        return _features(self.scale * _mixed(self.mix, states)) @ self.matrix + self.bias


def fit(states: np.ndarray, target: np.ndarray, penalty: float, start: LinearProbe | None = None) -> LinearProbe:
    """Return the probe with the least penalized loss.

    With one layer the loss is convex, so the starting point does not matter; with several it is not, and training
    starts from equal shares.

    Args:
      states: float32 [R, n, S, H], standardized.
      target: float [n, C]: one-hot rows for cross-entropy (C ≥ 2), or numbers to estimate (C = 1).
      penalty: λ of λ/2 · |W|².
      start: probe of one layer to start from.
    """
    return _minimum(_Problem(states, target), penalty, start)


def _minimum(problem: "_Problem", penalty: float, start: LinearProbe | None) -> LinearProbe:
    from scipy.optimize import minimize

    problem.set_penalty(penalty)
    found = minimize(
        problem,
        problem.packed(start),
        jac=True,
        method="L-BFGS-B",
        options={"gtol": TOLERANCE, "ftol": 0.0, "maxiter": MOST_ITERATIONS, "maxfun": 2 * MOST_ITERATIONS},
    )
    shares, matrix, bias = problem.unpacked(found.x)
    return LinearProbe(
        matrix, bias, shares, problem.scale(shares), penalty, float(np.abs(found.jac).max()), int(found.nit)
    )


def fit_and_choose(
    train: np.ndarray, target: np.ndarray, dev: np.ndarray, dev_target: np.ndarray
) -> tuple[LinearProbe, int]:
    """Return the probe whose penalty has the least loss on dev, and how many of those tried did not converge.

    Penalties become weaker until dev gets worse. A probe of one layer starts from the last; that of a mix would find it
    hard to leave shares near 0.
    """
    best, least, failed, probe, problem = None, np.inf, 0, None, _Problem(train, target)
    for penalty in PENALTIES:
        probe = _minimum(problem, penalty, probe if len(train) == 1 else None)
        failed += not probe.converged
        loss = _loss(probe.scores(dev), dev_target)[0]
        if best is not None and loss >= least:
            break
        best, least = probe, loss
    assert best is not None
    return best, failed


def standardized(train: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """Return states [R, n, S, H] with mean 0 and variance 1 over the n of `train`, and the others by the same map."""
    mean = train.mean(axis=1, keepdims=True, dtype=np.float64)
    deviation = train.std(axis=1, keepdims=True, dtype=np.float64)
    scale = np.where(deviation > 1e-5 * np.abs(mean) + 1e-12, deviation, np.inf)  # else rounding, as of a constant
    return [((states - mean) / scale).astype(np.float32) for states in (train, *others)]


def softmax(values: np.ndarray) -> np.ndarray:
    """Return float64 shares over the last axis."""
    shares = np.exp(values - values.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


class _Problem:
    """The penalized mean loss and its gradient as a function of one vector: [layer scores (R > 1), matrix, bias].

    The states of BERT vary in few directions, so that the curvature of the loss spans six orders of magnitude, and an
    optimizer would need thousands of steps. The matrix is therefore stored in the vector as rows for the principal
    directions of the features, each scaled so that the curvature is about one in all of them. The minimum is the same.
    """

    def __init__(self, states: np.ndarray, target: np.ndarray):
        self._states, self._target = states, target.astype(np.float64)
        self._layers = len(states)
        self._mixing = self._layers if self._layers > 1 else 0
        flat = states.reshape(self._layers, -1)
        self._products = (flat @ flat.T / flat.shape[1]).astype(np.float64)  # shares @ products @ shares: mean square
        shares = np.full(self._layers, 1 / self._layers)
        features = _features(self.scale(shares) * _mixed(shares, states))
        self._features = None if self._mixing else features
        centred = features - features.mean(axis=0)
        variances, self._directions = np.linalg.eigh(centred.T @ centred / len(features))
        # The curvature p (1 - p) of a cross-entropy is at most about 1 / C where training starts, at p = 1 / C.
        self._curvature = np.maximum(variances, 0.0) / target.shape[1]
        self._shape = (features.shape[1], target.shape[1])
        self.set_penalty(PENALTIES[0])

    def set_penalty(self, penalty: float) -> None:
        """Change λ; vectors have another meaning after it."""
        self._penalty = penalty
        self._basis = self._directions / np.sqrt(self._curvature + penalty)
        self._inverse = self._directions * np.sqrt(self._curvature + penalty)  # its transpose is the inverse

    def scale(self, shares: np.ndarray) -> float:
        """Return what gives the mix the mean square of a layer, which is 1 where it is standardized."""
        return 1.0 if not self._mixing else float(shares @ self._products @ shares) ** -0.5

    def packed(self, probe: LinearProbe | None) -> np.ndarray:
        """Return the vector of a probe of one layer; None: that of zeros."""
        if probe is None:
            return np.zeros(self._mixing + self._shape[0] * self._shape[1] + self._shape[1])
        return np.concatenate([(self._inverse.T @ probe.matrix).ravel(), probe.bias])

    def unpacked(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the shares of the layers, the matrix and the bias."""
        shares = softmax(values[: self._mixing]) if self._mixing else np.ones(1)
        matrix = self._basis @ values[self._mixing : -self._shape[1]].reshape(self._shape)
        return shares, matrix, values[-self._shape[1] :]

    def __call__(self, values: np.ndarray) -> tuple[float, np.ndarray]:
        shares, matrix, bias = self.unpacked(values)
        scale = self.scale(shares)
        mixed = scale * _mixed(shares, self._states) if self._features is None else None
        features = self._features if mixed is None else _features(mixed)
        assert features is not None
        loss, of_scores = _loss(features @ matrix + bias, self._target)
        loss += self._penalty / 2 * float((matrix**2).sum())
        of_matrix = features.T @ of_scores + self._penalty * matrix
        parts = [(self._basis.T @ of_matrix).ravel(), of_scores.sum(axis=0)]
        if mixed is not None:
            of_mixed = _of_states(of_scores @ matrix.T, mixed)
            of_shares = scale * (self._states.reshape(self._layers, -1) @ of_mixed.astype(np.float32).ravel())
            of_shares = of_shares - float((of_mixed * mixed).sum()) * scale**2 * (self._products @ shares)
            parts.insert(0, shares * (of_shares - shares @ of_shares))
        return loss, np.concatenate(parts)


def _loss(scores: np.ndarray, target: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean loss and its gradient [n, C]: cross-entropy, or for one column half the squared error."""
    if target.shape[1] == 1:
        difference = scores - target
        return float((difference**2).mean() / 2), difference / len(target)
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return -float((logs * target).sum() / len(target)), (np.exp(logs) - target) / len(target)


def _mixed(shares: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Return Σ shares · states, float64 [n, S, H]; summed in float32, as the states are, which need not be copied."""
    return (shares.astype(np.float32) @ states.reshape(len(states), -1)).reshape(states.shape[1:]).astype(np.float64)


def _features(states: np.ndarray) -> np.ndarray:
    """Return [n, H] of one span, [n, 3 · H] of two, from [n, S, H]."""
    if states.shape[1] == 1:
        return states[:, 0]
    first, second = states[:, 0], states[:, 1]
    return np.concatenate([first, second, first * second], axis=1)


def _of_states(of_features: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Return the gradient [n, S, H] by the states from that by their `_features`."""
    if states.shape[1] == 1:
        return of_features[:, None]
    of_first, of_second, of_product = np.split(of_features, 3, axis=1)
    return np.stack([of_first + of_product * states[:, 1], of_second + of_product * states[:, 0]], axis=1)
