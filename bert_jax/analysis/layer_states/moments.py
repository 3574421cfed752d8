"""Mean and covariance of vectors that come in parts, of any number of vectors, in float64."""

import numpy as np


class Moments:
    """The number, the mean and the summed squared deviations of all vectors added so far, for each of R layers."""

    def __init__(self, layers: int, size: int):
        self.count: int = 0
        self.mean: np.ndarray = np.zeros((layers, size))
        self._deviations: np.ndarray = np.zeros((layers, size, size))

    def add(self, vectors: np.ndarray) -> None:
        """Add [n, R, H].

        The deviations are those from the mean of the part, corrected for the distance of the two means (Chan, Golub,
        LeVeque 1979), so that no digits are lost where the mean is far from zero, as it is in BERT.
        """
        part = np.moveaxis(vectors, 1, 0).astype(np.float64)
        mean, count = part.mean(axis=1), part.shape[1]
        centred = part - mean[:, None]
        shift, total = mean - self.mean, self.count + count
        between = shift[:, :, None] * shift[:, None, :] * (self.count * count / total)
        self._deviations += np.swapaxes(centred, 1, 2) @ centred + between
        self.mean += shift * (count / total)
        self.count = total

    def covariance(self) -> np.ndarray:
        """Return float64 [R, H, H], divided by the number of vectors less one."""
        return self._deviations / (self.count - 1)

    def second_moment(self) -> np.ndarray:
        """Return float64 [R, H, H]: the mean of x xᵀ, not centred."""
        return self._deviations / self.count + self.mean[:, :, None] * self.mean[:, None, :]
