"""JSON values → one hash, whatever the order of their keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON: keys sorted, no spaces, UTF-8."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
