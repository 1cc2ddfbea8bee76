"""The supported range of torch."""

from __future__ import annotations

from typing import Final

import torch

from coilwork_frontend.errors import UnsupportedTorchError

OLDEST: Final = (2, 11)
NEWEST: Final = (2, 13)


def check_torch_version(version: str = torch.__version__) -> None:
    """Refuse a torch outside the supported range.

    Raises:
        UnsupportedTorchError: with the versions that work.
    """
    if not OLDEST <= find_release(version) <= NEWEST:
        span = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        raise UnsupportedTorchError(
            "torch-version",
            f"torch {version} is not supported",
            reason=f"Coilwork works with torch {span}",
            remedy=f'pip install "torch>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"',
        )


def find_release(version: str = torch.__version__) -> tuple[int, int]:
    """Return the first two numbers of a version of torch; zeros if there are none."""
    parts = version.split("+")[0].split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        return 0, 0
