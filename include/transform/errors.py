"""Errors of transforms and copies.

TransformError             configuration or input: trying again changes nothing
 └─ TransientTransformError   the cluster or the network: trying again may help
"""

from __future__ import annotations


class TransformError(Exception):
    """The transform cannot be done as asked; the message names object, reason and remedy."""


class TransientTransformError(TransformError):
    """The transform failed for a reason that may pass."""
