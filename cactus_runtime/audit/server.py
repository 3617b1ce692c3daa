"""Asks an OpenAI-compatible server for completions. Knows HTTP and JSON, no model."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class ServerError(ValueError):
    """A server that cannot be reached, or does not answer as an OpenAI-compatible one does.

    Examples
    --------
    >>> issubclass(ServerError, ValueError)
    True
    """


def check_model(url: str, model: str, *, timeout: float = 10.0) -> None:
    """Raise ServerError unless the server answers and lists the model.

    Parameters
    ----------
    url : str
        With or without ``/v1``.
    model : str
    timeout : float
        Seconds.
    """
    answer = _call(f"{_base(url)}/models", None, timeout)
    names = [entry.get("id") for entry in answer.get("data", []) if isinstance(entry, dict)]
    if model not in names:
        raise ServerError(f"model must be one that {url} serves ({names}), got {model!r}")


def completions(
    url: str,
    model: str,
    prompts: Iterable[tuple[str, int]],
    settings: Mapping[str, Any],
    *,
    concurrency: int = 4,
    timeout: float = 120.0,
) -> Iterator[dict[str, Any]]:
    """Transcripts of a server, in the order of the prompts.

    Parameters
    ----------
    url, model : str
    prompts : iterable of (str, int)
        Each with the seed of its request.
    settings : mapping
        Sent with every request: temperature, top_p, max_tokens and others.
    concurrency : int
        Requests at a time.
    timeout : float
        Seconds for one request.

    Yields
    ------
    dict
        A transcript with prompt, seed, text and token_ids.

    Raises
    ------
    ServerError
        If a request fails, or the answer has no token ids.
    """

    def ask(asked: tuple[str, int]) -> dict[str, Any]:
        prompt, seed = asked
        body = {
            "model": model,
            "prompt": prompt,
            "seed": seed,
            "logprobs": 1,
            "return_token_ids": True,  # vLLM's
            **settings,
        }
        answer = _call(f"{_base(url)}/completions", body, timeout)
        choices = answer.get("choices") or [{}]
        ids = token_ids(choices[0])
        if ids is None:
            raise ServerError(
                f"{url} must give token ids (vLLM's token_ids, or logprobs with an id for each "
                "token), but its completions have none; transcripts of text alone can be audited "
                "from a file"
            )
        found = {"prompt": prompt, "seed": seed, "text": choices[0].get("text", "")}
        if isinstance(choices[0].get("prompt_token_ids"), list):
            found["prompt_ids"] = choices[0]["prompt_token_ids"]
        return found | {"token_ids": ids}

    with ThreadPoolExecutor(concurrency) as pool:
        futures = [pool.submit(ask, asked) for asked in prompts]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def token_ids(choice: Mapping[str, Any]) -> list[int] | None:
    """The ids of a completion, in whichever way the server gives them; None if it does not.

    Examples
    --------
    >>> token_ids({"token_ids": [1, 2]}), token_ids({"text": "a"})
    ([1, 2], None)
    >>> token_ids({"logprobs": {"content": [{"id": 7, "token": "a"}]}})
    [7]
    """
    if isinstance(choice.get("token_ids"), list):
        return choice["token_ids"]
    logprobs = choice.get("logprobs") or {}
    content = logprobs.get("content")
    if isinstance(content, list) and all(isinstance(x.get("id"), int) for x in content):
        return [x["id"] for x in content]
    named = logprobs.get("tokens")
    if named and all(isinstance(x, str) and x.startswith("token_id:") for x in named):
        return [int(x.removeprefix("token_id:")) for x in named]
    return None


def _base(url: str) -> str:
    url = url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ServerError(f"server must be an http or https URL, got {url!r}")
    return url if url.endswith("/v1") else f"{url}/v1"


def _call(url: str, body: Mapping[str, Any] | None, timeout: float) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            answer = json.loads(response.read())
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")[:200]
        raise ServerError(f"{url} refused the request with status {error.code}: {said}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ServerError(f"{url} cannot be reached, or answers without JSON: {reason}") from error
    if not isinstance(answer, dict):
        raise ServerError(f"{url} must answer with a JSON object, got {type(answer).__name__}")
    return answer
