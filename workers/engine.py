"""The client of the VLM's engine, built from its settings."""

from __future__ import annotations

from pipeline.errors import Reason, UserError
from pipeline.models.chat_client import ChatClient, Deadlines
from workers.settings import VlmSettings


def open_engine(settings: VlmSettings, *, url: str | None = None) -> ChatClient:
    """Connect to nothing yet. `url` replaces the one that is set; UserError where neither is there."""
    wanted = url or settings.url
    if wanted is None:
        raise UserError(Reason.BAD_SETTING, "no VLM engine is set: VIDEOSIEVE_VLM__URL says where it is")
    deadlines = Deadlines(
        connect_s=settings.connect_s,
        first_token_s=settings.first_token_s,
        next_token_s=settings.next_token_s,
        total_s=settings.total_s,
    )
    key = settings.api_key.get_secret_value() if settings.api_key else None
    return ChatClient(wanted, api_key=key, deadlines=deadlines, max_connections=settings.concurrency)
