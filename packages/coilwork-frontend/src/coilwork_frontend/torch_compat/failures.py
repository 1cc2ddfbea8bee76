"""Exceptions of torch's tracing that Dynamo acts on."""

from __future__ import annotations

from typing import Final

from torch._dynamo.exc import TorchDynamoException, exceptions_allowed_to_be_fallback

FOR_DYNAMO: Final[tuple[type[Exception], ...]] = (TorchDynamoException, *exceptions_allowed_to_be_fallback)
"""With these Dynamo tells the user, or goes on with a smaller graph."""
