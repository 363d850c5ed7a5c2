"""Names of uploaded files, made safe to be the last part of an object key. Pure."""

from __future__ import annotations

import unicodedata

MAX_BYTES = 200
FALLBACK = "video"
_SUFFIX_MAX_BYTES = 16

# `;` ends a value for `curl -F`, `${filename}` in a key is replaced by S3, and the others are characters that the
# S3 manual advises against, or that a shell would act on.
_REPLACED = str.maketrans(dict.fromkeys(";$\"'`<>|&*?#%{}[]^~!", "_"))
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_DROPPED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})


def safe_filename(name: str) -> str:
    """The last component of `name`, fit for a key, a log line and a form field.

    Letters of every script and emoji stay. Control characters, line separators, text-direction marks and
    characters that XML cannot hold go. At most MAX_BYTES of UTF-8, the suffix kept; never empty, `.` or `..`.
    """
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    kept = "".join(char for char in last if not _is_dropped(char))
    composed = unicodedata.normalize("NFC", kept)  # first: it turns a Greek question mark into a semicolon
    return _shorten(composed.translate(_REPLACED).strip().rstrip(" .")) or FALLBACK


def _is_dropped(char: str) -> bool:
    code = ord(char)
    not_a_character = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return not_a_character or char in _BIDI_CONTROLS or unicodedata.category(char) in _DROPPED_CATEGORIES


def _shorten(name: str) -> str:
    """`name` in at most MAX_BYTES; no character is cut in half."""
    if len(name.encode()) <= MAX_BYTES:
        return name
    stem, dot, suffix = name.rpartition(".")
    end = (dot + suffix).encode()
    if not stem or len(end) > _SUFFIX_MAX_BYTES:
        stem, end = name, b""
    return stem.encode()[: MAX_BYTES - len(end)].decode(errors="ignore").rstrip(" .") + end.decode()
