"""Every metric, declared once: name, type, unit, labels, meaning. No ids as labels."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 6 * 3600, 86400)


class Metrics:
    """The metrics of one process. Each belongs to the registry that `/metrics` serves."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        # messages and runs
        self.messages = Counter(
            "videosieve_messages_total",
            "Messages taken off a lane, by what they were.",
            ["lane", "kind"],
            registry=registry,
        )
        self.dispositions = Counter(
            "videosieve_message_dispositions_total",
            "What became of messages: acknowledge, retry, dead_letter, stop.",
            ["lane", "action"],
            registry=registry,
        )
        self.claims = Counter(
            "videosieve_claims_total",
            "Attempts to claim a run: claimed, busy (a live lease elsewhere), settled (a duplicate avoided).",
            ["result"],
            registry=registry,
        )
        self.runs = Counter(
            "videosieve_runs_total",
            "Runs that ended here, by state and reason.",
            ["state", "reason"],
            registry=registry,
        )
        self.verdicts = Counter(
            "videosieve_verdicts_total",
            "Verdicts given, by policy, question, answer and the stage that gave it.",
            ["policy", "question", "answer", "stage"],
            registry=registry,
        )
        self.leases_lost = Counter(
            "videosieve_leases_lost_total", "Runs lost to another worker because a lease ran out.", registry=registry
        )
        self.heartbeats = Counter("videosieve_heartbeats_total", "Leases renewed.", registry=registry)
        self.in_flight = Gauge("videosieve_in_flight_videos", "Messages being worked on now.", registry=registry)
        self.busy = Counter(
            "videosieve_busy_seconds_total",
            "Time that threads spent on messages; by `videosieve_threads`, the busy share.",
            registry=registry,
        )
        self.threads = Gauge("videosieve_threads", "Messages that may be worked on at once.", registry=registry)
        self.waiting = Gauge(
            "videosieve_waiting_messages", "Messages received and not begun yet.", ["lane"], registry=registry
        )
        self.waiting_bytes = Gauge("videosieve_waiting_bytes", "What these hold, as characters.", registry=registry)
        self.oldest_message = Gauge(
            "videosieve_oldest_message_seconds",
            "Age of the oldest message that this worker holds, begun or not; 0 where it holds none.",
            ["lane"],
            registry=registry,
        )
        self.backlog = Gauge(
            "videosieve_backlog_messages",
            "Messages in a lane as the queue counts them: visible, in_flight (with any worker, begun or not), delayed.",
            ["lane", "state"],
            registry=registry,
        )
        # health
        self.breaker_open = Gauge(
            "videosieve_breaker_open",
            "1 while nothing is received because this dependency fails.",
            ["dependency"],
            registry=registry,
        )
        self.breaker_trips = Counter(
            "videosieve_breaker_trips_total", "How often a breaker opened.", ["dependency"], registry=registry
        )
        # time and cost
        self.upload_to_decision = Histogram(
            "videosieve_upload_to_decision_seconds",
            "From the upload's event to the committed decision, by the database's clock.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.latency_goal = Gauge(
            "videosieve_latency_goal_seconds",
            "What the active policy wants of the time to decision.",
            registry=registry,
        )
        self.time_in_queue = Histogram(
            "videosieve_time_in_queue_seconds",
            "From sending a message to taking it.",
            ["lane"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.stage_cpu = Counter(
            "videosieve_stage_cpu_seconds_total",
            "CPU time by stage: the policy's stages; `keyframes`, all of extraction with the child and its reads;"
            " `reads`, the part of it that fetches bytes; `jpeg`, `artifacts`, `ledger`, `queue`.",
            ["stage"],
            registry=registry,
        )
        self.stage_device = Counter(
            "videosieve_stage_device_seconds_total", "Accelerator time by stage.", ["stage"], registry=registry
        )
        self.stage_images = Counter(
            "videosieve_stage_images_total",
            "Images that a stage's model was shown, crops each counted; of `keyframes`, those taken.",
            ["stage"],
            registry=registry,
        )
        self.stage_settled = Counter(
            "videosieve_stage_questions_total",
            "Questions that a stage was asked, by what came of it: settled, passed_on.",
            ["stage", "result"],
            registry=registry,
        )
        self.yardstick = Counter(
            "videosieve_yardstick_nano_total",
            "What a VLM on every frame, or every keyframe, would have cost, in nano-units of the currency.",
            ["currency", "on"],
            registry=registry,
        )
        self.stage_wall = Histogram(
            "videosieve_stage_wall_seconds",
            "Wall time of a video's steps: analyze, artifacts, commit.",
            ["step"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.money = Counter(
            "videosieve_money_nano_total",
            "Money spent, in nano-units of the currency.",
            ["currency", "stage"],
            registry=registry,
        )
        self.bytes_read = Counter(
            "videosieve_bytes_read_total", "Bytes of videos read from storage.", registry=registry
        )
        self.frames_decoded = Counter("videosieve_frames_decoded_total", "Frames decoded.", registry=registry)
        self.keyframes = Counter(
            "videosieve_keyframes_total", "Keyframes taken, by reason.", ["reason"], registry=registry
        )
        # doors
        self.uploads_created = Counter(
            "videosieve_uploads_created_total", "Uploads created by the API.", registry=registry
        )
        self.api_requests = Counter(
            "videosieve_api_requests_total",
            "API requests, by route template and status.",
            ["method", "route", "status"],
            registry=registry,
        )
        self.api_seconds = Histogram(
            "videosieve_api_request_seconds",
            "Time to answer an API request.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.reviews_answered = Counter(
            "videosieve_reviews_answered_total",
            "Answers given by people through the API.",
            ["answer"],
            registry=registry,
        )
        # the vision-language model
        self.vlm_requests = Counter(
            "videosieve_vlm_requests_total",
            "Requests to the VLM's engine, by how they ended: answered, or the reason.",
            ["outcome"],
            registry=registry,
        )
        self.vlm_ttft = Histogram(
            "videosieve_vlm_ttft_seconds",
            "From a request to the first token of its answer: the engine's queue and prefill.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.vlm_tpot = Histogram(
            "videosieve_vlm_tpot_seconds",
            "Time for each further token of an answer, by the engine's own count of tokens.",
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1),
            registry=registry,
        )
        self.vlm_tokens = Counter(
            "videosieve_vlm_tokens_total",
            "Tokens by the engine's usage: in (cached ones too), cached, out.",
            ["kind"],
            registry=registry,
        )
        self.vlm_usage_estimated = Counter(
            "videosieve_vlm_usage_estimated_total",
            "Videos whose usage the engine did not tell believably: the worst case was charged.",
            registry=registry,
        )
        self.vlm_images = Counter("videosieve_vlm_images_total", "Pictures sent to the engine.", registry=registry)
        self.vlm_limit = Gauge(
            "videosieve_vlm_limit_requests", "Requests that the engine is given at once now.", registry=registry
        )
        self.vlm_canary_score = Gauge(
            "videosieve_vlm_canary_ratio",
            "Share of known answers that the engine gave at the last canary; 0 where it gave no usable answer.",
            registry=registry,
        )
