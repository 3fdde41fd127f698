"""Prompts of given lengths. A local tokenizer or the server counts their tokens; without either, words count."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from benchmarks.bench.load.arrivals import read_lines
from benchmarks.bench.load.dialects import Dialect, RequestOptions
from benchmarks.bench.load.http import HttpConnectionPool, RequestFailedError

TokenCounter = Callable[[str], Awaitable[int]]

COMMON_WORDS_TEXT = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work number night point home water "
    "room mother area money story fact month lot right study book eye job word business issue side kind "
    "head house service friend father power hour game line end member law car city name team minute idea "
    "body back parent face level office door health person art war history party result change morning "
    "reason research girl guy moment air teacher force education")
COMMON_WORDS = COMMON_WORDS_TEXT.split()
TOO_LONG_STATUSES = {400, 413, 422}  # statuses of servers that only tokenize texts within their model's limit
MAX_QUOTED_CHARS = 300  # characters of an answer that an error quotes
FILLER_PIECES = (" a", " the", ".", " of", "!", "a", "-", "x", " 1")


class TokenizeLimitExceededError(RequestFailedError):
    """The text is longer than what the server tokenizes."""


async def count_words(text: str) -> int:
    return len(text.split())


def make_local_token_counter(tokenizer_path: str) -> TokenCounter:
    """Return a counter that uses tokenizer.json; `tokenizer_path` is this file or its folder."""
    path = Path(tokenizer_path, "tokenizer.json") if Path(tokenizer_path).is_dir() else Path(tokenizer_path)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no more specific class
        raise ValueError(f"--tokenizer: cannot read {path}: {error}") from None

    async def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)
    return count


def make_server_token_counter(server: HttpConnectionPool, dialect: Dialect, options: RequestOptions,
                              header_lines: str) -> TokenCounter:
    async def count(text: str) -> int:
        body = json.dumps(dialect.make_tokenize_body(text, options)).encode()
        status, response_body = await server.fetch(server.build_request("POST", "/tokenize", header_lines, body))
        if status in TOO_LONG_STATUSES:
            raise TokenizeLimitExceededError(
                f"/tokenize was answered with {status}: {response_body.decode(errors='replace')[:MAX_QUOTED_CHARS]}")
        if status != 200:
            raise RequestFailedError(f"/tokenize was answered with {status}")
        return parse_token_count(json.loads(response_body))
    return count


def parse_token_count(answer: Any) -> int:
    """Return the number of tokens in an answer to /tokenize: a list, or an object with `count` or `tokens`."""
    if isinstance(answer, dict):
        return int(answer["count"]) if "count" in answer else len(answer["tokens"])
    return len(answer)


async def choose_token_counter(server: HttpConnectionPool, dialect: Dialect, options: RequestOptions, header_lines: str,
                               tokenizer: str) -> tuple[TokenCounter, str]:
    """Return the best available counter and its unit."""
    if tokenizer:
        return make_local_token_counter(tokenizer), "tokens"
    count_tokens = make_server_token_counter(server, dialect, options, header_lines)
    try:
        if await count_tokens("a b"):
            return count_tokens, "tokens"
    except (RequestFailedError, ValueError, KeyError, TypeError):
        pass
    return count_words, "words"  # also where the server has read the text from another field, and counts none


async def make_prompt_of_length(prefix: str, num_tokens: int, count_tokens: TokenCounter, random: Random) -> str:
    """Return a text of `num_tokens` tokens that begins with `prefix`, or `prefix` alone if it has more.

    Raises RequestFailedError if the server does not tokenize a text of that length."""
    words = random.choices(COMMON_WORDS, k=num_tokens)

    async def fits(text: str) -> bool:
        try:
            return await count_tokens(text) <= num_tokens
        except TokenizeLimitExceededError:
            return False

    def take_words(num_words: int) -> str:
        return " ".join([prefix, *words[:num_words]] if prefix else words[:max(num_words, 1)])

    fitting_words, excess_words = 0, num_tokens  # numbers of words: so many fit, so many may not
    while excess_words - fitting_words > 1:
        middle = (fitting_words + excess_words) // 2
        fitting_words, excess_words = (middle,
                                       excess_words) if await fits(take_words(middle)) else (fitting_words, middle)
    return await fill_to_length(take_words(fitting_words), num_tokens, count_tokens)


async def fill_to_length(text: str, target_tokens: int, count_tokens: TokenCounter) -> str:
    """Append short pieces until the text has `target_tokens` tokens; none may add more than is missing."""
    num_tokens = await count_tokens(text)
    while num_tokens < target_tokens:
        too_long_error = None
        for piece in FILLER_PIECES:
            try:
                num_tokens_with_piece = await count_tokens(text + piece)
            except TokenizeLimitExceededError as error:
                too_long_error = error
                continue
            if num_tokens < num_tokens_with_piece <= target_tokens:
                text, num_tokens = text + piece, num_tokens_with_piece
                break
        else:
            if too_long_error is not None:
                raise too_long_error
            break
    return text


def load_prompts(path: Path) -> list[tuple[str, int | None]]:
    """Read a prompt from each line: plain text, a JSON string, or an object with `prompt` and maybe `output_tokens`."""
    prompts = [parse_prompt_line(line, f"{path}, line {number}") for number, line in enumerate(read_lines(path), 1)
               if line.strip()]
    if not prompts:
        raise ValueError(f"{path} holds no prompt")
    return prompts


def parse_prompt_line(line: str, location: str) -> tuple[str, int | None]:
    try:
        parsed = json.loads(line) if line.lstrip()[:1] in {'"', "{"} else line
    except ValueError:
        return line, None
    if isinstance(parsed, dict):
        if not isinstance(parsed.get("prompt"), str):
            raise ValueError(f"{location}: an object has no text as `prompt`: {line[:80]}")
        return parsed["prompt"], parse_output_tokens(parsed.get("output_tokens"), location)
    return parsed, None


def parse_output_tokens(value: Any, location: str) -> int | None:
    """Return a positive integer or None. Raises ValueError otherwise, also for "10", 10.0 and true."""
    if value is None or (type(value) is int and value >= 1):
        return value
    raise ValueError(f"{location}: `output_tokens` must be a whole number from 1, got {json.dumps(value)[:80]}")
