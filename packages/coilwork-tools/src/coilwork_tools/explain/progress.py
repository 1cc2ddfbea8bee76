"""How far the builds and searches of a graph's kernels are, in the log."""

from __future__ import annotations

import logging

from coilwork_runtime.triton_kernels.autotune.coordinate_descent import Trial

log = logging.getLogger("coilwork")


def log_progress(graph_id: str, done: int, total: int) -> None:
    """Log how many kernels of a graph are ready."""
    log.debug("graph %s: %d of %d kernels ready", graph_id, done, total)


def log_search(graph_id: str, kernel: str, trials: int, best: Trial) -> None:
    """Log the best configuration of a kernel after some trials."""
    log.info(
        "graph %s: kernel %s: %.4g us after %d configurations: %s",
        graph_id,
        kernel,
        1e3 * (best.milliseconds or 0.0),
        trials,
        ", ".join(f"{name}={value}" for name, value in best.config.items()),
    )
