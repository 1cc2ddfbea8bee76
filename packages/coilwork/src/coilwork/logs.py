"""`TORCH_LOGS=+coilwork`: the switch PyTorch users know, for our loggers."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

LOGGER = "coilwork"


def requested_level(environ: Mapping[str, str]) -> int | None:
    """The level that `TORCH_LOGS` asks of us: `coilwork` for INFO, `+coilwork` DEBUG, `-coilwork` ERROR."""
    for item in environ.get("TORCH_LOGS", "").split(","):
        name = item.strip()
        if name.lstrip("+-") == LOGGER:
            return (
                logging.DEBUG
                if name.startswith("+")
                else logging.ERROR
                if name.startswith("-")
                else logging.INFO
            )
    return None


def configure(environ: Mapping[str, str] | None = None) -> None:
    """Give the `coilwork` loggers a handler and the level that the environment asks for, once."""
    level = requested_level(os.environ if environ is None else environ)
    logger = logging.getLogger(LOGGER)
    if level is None or logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[coilwork] %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level)
