"""The settings of the HTTP front ends, and of users."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tailrace.config.section import Amount, Natural, PerMinute, Port, Positive, Seconds, Section, split_commas

MAX_WEIGHT = 100  # of a user


class UserConfig(Section, frozen=True):
    """A user with a name. The settings file alone has such users.

    - api_key: the user's key. It may call, as those of ServerConfig.api_keys.
    - requests_per_minute, tokens_per_minute, max_requests: the user's own limits; None: those of all users, 0: none.
    - max_priority: the user's own; None: that of all users.
    - weight: while users compete, how many tokens the user gets for one token of a user with weight 1.
    """

    api_key: str
    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    max_requests: Natural | None = None
    max_priority: Natural | None = None
    weight: Annotated[int, msgspec.Meta(ge=1, le=MAX_WEIGHT)] = 1


class ServerConfig(Section, frozen=True):
    """The HTTP front ends. Times are in seconds.

    - front_ends: number of processes that listen on the port.
    - on_engine_death: exit with an error, or start a new engine.
    - model_defaults: fields missing from a request come from the model's generation config, if it has them.
    - api_keys, cors_origins: separated by commas. Empty: everybody may call, but no pages of other sites.
    - cache_isolation: which requests share cached prefixes: all ("none"), those with the same cache_salt ("salt"), or
      those of one user with the same cache_salt ("user"). auto: "user" with several keys, else "salt".
    - users: name → a user's key and limits.
    - requests_per_minute, tokens_per_minute, max_requests_per_user: what one user may start, use and run at once in all
      front ends together; 0: no limit.
    - metrics_by_user: maximum number of users with samples of their own in /metrics. All others share one; 0: no
      metrics by user.
    - max_priority: among other users' requests, a priority counts up to this number, and down to its negative. Beyond
      it, a priority counts among its own user's requests alone.
    - log_requests: write a log line for each request at its end.
    - page: serve the page that explains tokens, at /.
    - max_request_s: a longer request ends with its output so far; 0: no limit.
    - keep_alive_s: a silent stream gets a comment after this time.
    - max_body_mib: of a request, compressed or not.
    - max_headers, max_header_line_bytes, max_header_bytes, max_url_bytes: limits of a request's head.
    - header_timeout_s, body_timeout_s: maximum time until they have arrived.
    - idle_timeout_s: maximum time of a connection without a request. It exceeds common proxies' limits, so that they
      close first.
    - max_connections, max_connections_per_address: of one front end; 0: no limit per address.
    - allowed_hosts: accepted host names, separated by commas; "*": any. Empty: loopback names if the server listens on
      loopback, else any.
    - max_body_items: objects, lists and strings (names too) in a body's JSON; four times as many numbers.
    - max_tokenize_kib: of a body for /tokenize and /detokenize, which no context limits.
    - stream_interval: number of a sequence's tokens that are sent together. The first tokens never wait.
    - stream_interval_ms: send the available tokens after this time; 0: only their number decides.
    - stream_buffer_kib: unread data of a slow client.
    - slow_readers: beyond stream_buffer_kib, end the request with its output so far ("cut") or keep all data ("keep").
    - resume_s: how long a resumable request runs without a reader, and how long its events are kept after its end; 0:
      no request is resumable.
    - resume_mib: size of the events of resumable requests of all users, in the memory of one front end.
    - stored_responses_mib: size of the stored responses of all users: in the file, or in the memory of one front end.
    - stored_responses_file: a file for stored responses, so that they survive a restart. None: they are in memory.
    - stored_responses_days: age at which a stored response is dropped; 0: never.
    - encryption_key: for thoughts and compactions that clients keep. Empty: a random one, which ends with the server.
    - reasoning_parser, tool_parser: formats of reasoning and tool calls (text/reasoning.py, text/tool_parsers). auto
      reads the checkpoint's response template, or its vocabulary and chat template. none leaves everything in the
      content.
    - reasoning_budget_message: closing words of a thought that the server ends.
    - reasoning_field: what the answer of a chat calls the thoughts of the model.
    - foreign_tools: tools that cannot be served, such as those that only a vendor's server can run: drop them with a
      warning if other tools are left, and write earlier calls of such tools as text; or refuse the request.
    - foreign_content: images, sounds, films and files, which no model here reads: put a line of text in their place, or
      refuse the request. auto: in a tool's result and in an answer of before a line of text, elsewhere refuse.
    - unknown_fields: of a request's body: answer with a warning, or refuse the request.
    - sleep_endpoints: clients may put models to sleep and wake them, by POST /sleep and /wake_up.
    - unseen_tools: if the chat template does not write a request's tools, answer with a warning, or refuse the request.
    """

    host: str = "127.0.0.1"
    port: Port = 8000
    front_ends: Positive = 1
    on_engine_death: Literal["exit", "restart"] = "exit"
    start_timeout_s: Seconds = 600.0
    drain_timeout_s: Seconds = 30.0
    max_logprobs: Natural = 20
    model_defaults: bool = True
    api_keys: str = ""
    cache_isolation: Literal["auto", "none", "salt", "user"] = "auto"
    cors_origins: str = ""
    users: dict[str, UserConfig] = msgspec.field(default_factory=dict)
    requests_per_minute: PerMinute = 0
    tokens_per_minute: PerMinute = 0
    max_requests_per_user: Natural = 0
    metrics_by_user: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    max_priority: Natural = 0
    max_request_s: Amount = 0.0
    keep_alive_s: Seconds = 15.0
    max_body_mib: Positive = 8
    max_headers: Positive = 100
    max_header_line_bytes: Positive = 16_384
    max_header_bytes: Positive = 65_536
    max_url_bytes: Positive = 8192
    header_timeout_s: Seconds = 30.0
    body_timeout_s: Seconds = 120.0
    idle_timeout_s: Seconds = 75.0
    max_connections: Positive = 16_384
    max_connections_per_address: Natural = 0
    allowed_hosts: str = ""
    max_body_items: Positive = 81_920
    max_tokenize_kib: Positive = 1024
    stream_interval: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    stream_interval_ms: Annotated[float, msgspec.Meta(ge=0, le=10_000)] = 0.0
    stream_buffer_kib: Positive = 1024
    stored_responses_mib: Positive = 64
    stored_responses_file: str | None = None
    stored_responses_days: Amount = 30.0
    encryption_key: str = ""
    slow_readers: Literal["cut", "keep"] = "cut"
    resume_s: Amount = 60.0
    resume_mib: Positive = 64
    reasoning_field: Literal["both", "reasoning_content", "reasoning"] = "both"
    foreign_tools: Literal["drop", "refuse"] = "drop"
    foreign_content: Literal["auto", "placeholder", "refuse"] = "auto"
    unknown_fields: Literal["warn", "refuse"] = "warn"
    unseen_tools: Literal["warn", "refuse"] = "warn"
    sleep_endpoints: bool = False
    log_requests: bool = True
    page: bool = True
    reasoning_parser: str = "auto"
    reasoning_budget_message: str = ""
    tool_parser: str = "auto"

    @property
    def keys(self) -> list[str]:
        """The different keys of `api_keys` and `users`."""
        return [*dict.fromkeys([*split_commas(self.api_keys), *(user.api_key for user in self.users.values())])]

    @property
    def limits_users(self) -> bool:
        """True if a user has a limit."""
        own = ("requests_per_minute", "tokens_per_minute", "max_requests")
        common = self.requests_per_minute or self.tokens_per_minute or self.max_requests_per_user
        return bool(common) or any(getattr(user, field) for user in self.users.values() for field in own)

    @property
    def tracks_users(self) -> bool:
        """True if the front ends must know what each user does."""
        return self.limits_users or self.metrics_by_user > 0
