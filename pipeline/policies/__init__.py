"""The policies that ship with videosieve, and finding one by name or by path."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from pipeline.cascade.policy import Policy
from pipeline.cascade.policy_file import parse_policy
from pipeline.errors import Reason, UserError


def shipped() -> list[str]:
    """Names of the shipped policies."""
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in resources.files(__name__).iterdir()
        if entry.name.endswith(".yaml")
    )


def load(name_or_path: str) -> Policy:
    """A shipped policy by its name, or a policy file by its path.

    Raises UserError(BAD_POLICY) that names the file, line, field and remedy.
    """
    if name_or_path in shipped():
        resource = resources.files(__name__) / f"{name_or_path}.yaml"
        return parse_policy(resource.read_text("utf-8"), origin=f"{name_or_path} (shipped)")
    path = Path(name_or_path)
    try:
        if path.exists() and not path.is_file():  # a device or a pipe would be read for ever
            raise UserError(Reason.BAD_POLICY, f"policy '{name_or_path}' is not a file")
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise UserError(
            Reason.BAD_POLICY,
            f"policy '{name_or_path}': no such file, nor a shipped policy; shipped are {', '.join(shipped())}",
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path, or bytes that are not UTF-8
        raise UserError(Reason.BAD_POLICY, f"policy '{name_or_path}' cannot be read: {error}") from None
    return parse_policy(text, origin=name_or_path)
