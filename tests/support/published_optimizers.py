"""Optimizers in float64 NumPy, transcribed from what was published, with the schedule that their runs follow."""

import jax
import numpy as np

STEPS, PEAK = 50, 0.02


def published(rule, params: dict, gradients_at) -> dict:
    """float64 run of `rule(p, m, v, t, decays, stacked) -> direction` with the 2018 clipping, exclusions and schedule.

    `gradients_at(step, params)` gives the leaves of the gradient.
    """
    structure = jax.tree.structure(params)
    paths = ["/".join(k.key for k in path) for path, _ in jax.tree.leaves_with_path(params)]
    params = [leaf.astype(np.float64) for leaf in jax.tree.leaves(params)]
    m, v = [np.zeros_like(p) for p in params], [np.zeros_like(p) for p in params]
    for t in range(STEPS):
        grads = [g.astype(np.float64) for g in gradients_at(t, jax.tree.unflatten(structure, params))]
        norm = np.sqrt(sum((g**2).sum() for g in grads))
        rate = PEAK * (t / 5 if t < 5 else 1 - t / STEPS)
        for i, path in enumerate(paths):
            g = grads[i] * 1.0 / max(norm, 1.0)
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g**2
            decays = not any(word in path for word in ("bias", "norm"))
            given = (params[i], m[i], v[i], t + 1, decays, path.startswith("encoder"))
            params[i] = params[i] - rate * (rule(*given, g) if rule is stable_adamw else rule(*given))
    return jax.tree.unflatten(structure, params)


def stable_adamw(p, m, v, t, decays, stacked, g):
    """Algorithm 2 of Wortsman et al. 2023, array by array; its decay is scaled with the step too."""
    u = v / (1 - 0.999**t)
    parts = range(len(p)) if stacked else [...]
    update = adamw(p, m, v, t, decays, stacked)
    for part in parts:
        rms = np.sqrt(np.mean(g[part] ** 2 / np.maximum(u[part], 1e-6**2)))
        update[part] = update[part] / max(1.0, rms)
    return update


def bert_2018(p, m, v, t, decays, stacked):
    return m / (np.sqrt(v) + 1e-6) + 0.01 * decays * p


def adamw(p, m, v, t, decays, stacked):
    return m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + 0.01 * decays * p


def lamb(p, m, v, t, decays, stacked):
    update = adamw(p, m, v, t, decays, stacked)
    if not decays:
        return update
    parts = [(p[i], update[i]) for i in range(len(p))] if stacked else [(p, update)]
    return np.stack([u * np.linalg.norm(w) / np.linalg.norm(u) for w, u in parts]).reshape(p.shape)
