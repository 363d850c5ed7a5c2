"""The settings tree: defaults, an optional TOML file, environment variables with the prefix VIDEOSIEVE_.

Only `workers.bootstrap` and the command line read it; a component gets its own section.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from pipeline.errors import Reason, UserError

ENV_PREFIX = "VIDEOSIEVE_"
CONFIG_FILE_VARIABLE = "VIDEOSIEVE_CONFIG_FILE"
DEFAULT_CONFIG_FILE = "videosieve.toml"

Port = Annotated[int, Field(ge=0, le=65535)]


def usable_cpus() -> int:
    """The cores that this process may run on: a container's or `taskset`'s share, not the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AwsSettings(_Section):
    """How S3 and SQS are reached. Unset keys mean boto3's own chain (environment, profile, instance role)."""

    endpoint_url: str | None = Field(None, description="S3 and SQS endpoint; unset means AWS, or what `up` runs")
    public_endpoint_url: str | None = Field(
        None, description="S3 endpoint as clients reach it, where that differs: presigned URLs name it"
    )
    region: str = Field("us-east-1", description="AWS region")
    access_key_id: SecretStr | None = Field(None, description="access key; unset means boto3's own chain")
    secret_access_key: SecretStr | None = Field(None, description="secret key; unset means boto3's own chain")


class StorageSettings(_Section):
    originals_bucket: str = Field("videosieve-originals", description="bucket that uploads go to")
    artifacts_bucket: str = Field("videosieve-artifacts", description="bucket for keyframes and result documents")


class QueuesSettings(_Section):
    uploads: str = Field("videosieve-uploads", description="queue of the upload lane")
    backfill: str = Field("videosieve-backfill", description="queue of the backfill lane")
    escalation: str = Field("videosieve-escalation", description="queue of what screening left undecided")
    dead_letter: str = Field("videosieve-dead-letter", description="queue for messages that cannot be handled")


class DatabaseSettings(_Section):
    url: SecretStr | None = Field(None, description="postgresql:// URL; unset means an embedded one in data_dir")
    wait_s: float = Field(
        60.0,
        ge=0,
        le=3600,
        description="how long a starting worker or API waits for a database that is down",
    )


class ModelsSettings(_Section):
    dir: Path | None = Field(None, description="folder of weights; unset means the user's cache folder")
    device: Literal["auto", "cpu", "cuda", "tensorrt"] = Field(
        "auto", description="where models run; `cuda` and `tensorrt` never fall back"
    )
    batch_size: int | None = Field(None, ge=1, le=256, description="images at once on a GPU; unset means by device")
    threads: int = Field(1, ge=1, le=256, description="threads of one inference")
    extra_catalog: Path | None = Field(None, description="YAML file of further models, merged over the shipped ones")


class DecoderSettings(_Section):
    """Limits of the child processes that touch uploaded bytes."""

    processes: int = Field(default_factory=usable_cpus, ge=1, le=256, description="decoder child processes")
    wall_s: Seconds = Field(60.0, description="longest time one video may take to decode")
    cpu_s: Seconds = Field(60.0, description="most CPU time one video may take to decode")
    memory_bytes: int = Field(
        2 * 1024**3, ge=1024**3, description="address space of one decoder process; its code alone is 0.6 GiB of it"
    )
    max_file_bytes: int = Field(20 * 1024**3, ge=1, description="largest file that is looked at")
    max_duration_s: Seconds = Field(4 * 3600.0, description="longest video that is looked at")
    max_pixels: int = Field(8192 * 4320, ge=1, description="most pixels of one frame")


class WorkerSettings(_Section):
    cpus: int = Field(default_factory=usable_cpus, ge=1, le=256, description="cores that inference may use at once")
    concurrency: int = Field(
        default_factory=lambda: 2 * usable_cpus(),
        ge=1,
        le=256,
        description="videos in flight at once; more than cores, so that fetching and committing overlap with work",
    )
    lease_s: float = Field(120.0, ge=3, le=3600, description="how long a claim holds without a heartbeat")
    grace_s: float = Field(8.0, ge=0, le=3600, description="how long a stopping worker may finish what it has")
    backfill_share: float = Field(0.1, ge=0, le=0.9, description="least part of all starts that the backfill lane gets")
    look_ahead: int = Field(
        4000,
        ge=0,
        le=20_000,
        description="messages held beyond those being worked on, so that one tenant blocks nobody",
    )
    poll_wait_s: int = Field(5, ge=0, le=20, description="long-poll time of an idle worker")
    metrics_host: str = Field("127.0.0.1", description="address that /metrics listens on")
    metrics_port: Port = Field(9464, description="port of /metrics; 0 takes any free one")


class VlmSettings(_Section):
    """The engine of a policy's VLM stage: any OpenAI-compatible server. What it is asked stands in the policy."""

    url: str | None = Field(None, description="base of the engine's API, as http://HOST:8000/v1; unset means no VLM")
    api_key: SecretStr | None = Field(None, description="the engine's key, where it wants one")
    concurrency: int = Field(
        16, ge=1, le=1024, description="most requests to the engine at once; fewer while it is slow"
    )
    ttft_goal_s: Seconds = Field(10.0, description="a first token later than this means fewer requests at once")
    connect_s: Seconds = Field(5.0, description="longest time to connect to the engine")
    first_token_s: Seconds = Field(60.0, description="longest time from a request to the first token of its answer")
    next_token_s: Seconds = Field(15.0, description="longest time between two tokens")
    total_s: Seconds = Field(180.0, description="longest time of one answer")
    logprobs: bool = Field(True, description="ask for token probabilities; without them the model's own score counts")
    canary_every_s: Seconds = Field(900.0, description="how often the known-answer pictures are sent")
    canary_least: float = Field(
        0.0, ge=0, le=1, description="share of known answers below which the engine counts as wrong and is not asked"
    )
    metrics_port: Port = Field(9465, description="port of the judging worker's /metrics; 0 takes any free one")


class ApiSettings(_Section):
    host: str = Field("127.0.0.1", description="address that the API listens on")
    port: Port = Field(8080, description="port of the API")
    max_upload_bytes: int = Field(
        5 * 1024**3, ge=1, le=5 * 1024**3, description="largest upload; S3 takes 5 GiB a POST"
    )
    upload_expires_s: int = Field(3600, ge=1, le=7 * 86400, description="how long a presigned upload is valid")
    result_expires_s: int = Field(900, ge=1, le=7 * 86400, description="how long a presigned picture is valid")


class LocalSettings(_Section):
    aws_port: Port = Field(4566, description="port of the embedded S3 and SQS; 0 takes any free one")


class LogSettings(_Section):
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is written")
    format: Literal["auto", "json", "console"] = Field("auto", description="auto: console on a terminal, else json")


class Settings(BaseSettings):
    """Everything that can be set. Nested fields are `VIDEOSIEVE_SECTION__FIELD` in the environment."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )
    toml_file: ClassVar[Path | None] = None

    data_dir: Path = Field(Path(".videosieve"), description="folder of what the embedded services keep")
    policy: str = Field(
        "moderation",
        description="the policy that is active until one is activated: a shipped one's name or a file's path",
    )
    aws: AwsSettings = AwsSettings()
    storage: StorageSettings = StorageSettings()
    queues: QueuesSettings = QueuesSettings()
    database: DatabaseSettings = DatabaseSettings()
    models: ModelsSettings = ModelsSettings()
    decoder: DecoderSettings = DecoderSettings()
    worker: WorkerSettings = WorkerSettings()
    vlm: VlmSettings = VlmSettings()
    api: ApiSettings = ApiSettings()
    local: LocalSettings = LocalSettings()
    log: LogSettings = LogSettings()

    @field_validator("data_dir")
    @classmethod
    def _data_dir_is_a_folder(cls, value: Path) -> Path:
        if value == Path():
            raise ValueError("must name a folder")
        folder = value.expanduser()
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is not a folder")
        return folder

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the base class fixes the signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - likewise
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources = (init_settings, env_settings)
        if cls.toml_file is None:
            return sources
        return (*sources, TomlConfigSettingsSource(settings_cls, toml_file=cls.toml_file))


def load_settings() -> Settings:
    """Settings from the environment and the TOML file that it names (or ./videosieve.toml).

    Raises UserError(BAD_SETTING), one line per fault, for unknown names, bad values and an unreadable file.
    """
    environ = os.environ
    config_file = _config_file(environ)
    _refuse_unknown_variables(environ)
    bound = type("BoundSettings", (Settings,), {"toml_file": config_file, "__module__": __name__})
    try:
        settings: Settings = bound()
        return settings
    except ValidationError as error:
        faults = [_fault(environ, config_file, list(item["loc"]), item["msg"], item["type"]) for item in error.errors()]
        raise UserError(Reason.BAD_SETTING, "\n".join(faults)) from None
    except (ValueError, tomllib.TOMLDecodeError) as error:  # pydantic-settings: a section that is not JSON
        raise UserError(Reason.BAD_SETTING, f"settings cannot be read: {' '.join(str(error).split())}") from None


def variable(path: tuple[str, ...]) -> str:
    """The environment variable of a setting: `("worker", "lease_s")` → `VIDEOSIEVE_WORKER__LEASE_S`."""
    return ENV_PREFIX + "__".join(path).upper()


def walk(model: type[BaseModel] = Settings, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every setting: its path and what it is for."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from walk(field.annotation, (*path, name))
        else:
            yield (*path, name), field.description or ""


def effective(settings: Settings) -> dict[str, Any]:
    """The settings as plain values, secrets masked, for `videosieve config`."""
    shown: dict[str, Any] = settings.model_dump(mode="json")
    return shown


def _config_file(environ: Mapping[str, str]) -> Path | None:
    named = environ.get(CONFIG_FILE_VARIABLE)
    path = Path(named or DEFAULT_CONFIG_FILE)
    if not path.is_file():
        if named:
            raise UserError(Reason.BAD_SETTING, f"{CONFIG_FILE_VARIABLE}={named}: no such file")
        return None
    try:
        tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(Reason.BAD_SETTING, f"{path}: not a readable TOML file: {problem}") from None
    return path


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = {variable(path) for path, _ in walk()} | {CONFIG_FILE_VARIABLE}
    sections = {variable((name,)) for name in Settings.model_fields}
    faults: list[str] = []
    for name in sorted(environ):
        foreign = name.upper().startswith(ENV_PREFIX + "TEST_")  # the test suite's own
        if name.upper().startswith(ENV_PREFIX) and not foreign and name.upper() not in known | sections:
            near = difflib.get_close_matches(name.upper(), known, n=1)
            hint = f"did you mean {near[0]}?" if near else "`videosieve config` lists them all"
            faults.append(f"{name}: no such setting; {hint}")
    if faults:
        raise UserError(Reason.BAD_SETTING, "\n".join(faults))


def _fault(environ: Mapping[str, str], config_file: Path | None, loc: list[int | str], message: str, kind: str) -> str:
    name = variable(tuple(str(part) for part in loc))
    where = (
        name
        if name in {key.upper() for key in environ} or config_file is None
        else f"{config_file}: {'.'.join(map(str, loc))}"
    )
    if kind == "extra_forbidden":
        dotted = [".".join(path) for path, _ in walk()]
        near = difflib.get_close_matches(".".join(map(str, loc)), dotted, n=1)
        return f"{where}: no such setting; " + (
            f"did you mean {near[0]}?" if near else "`videosieve config` lists them all"
        )
    return f"{where}: {message[:1].lower()}{message[1:]}; correct or unset it"
