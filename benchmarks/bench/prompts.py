"""Prompts of given lengths, and who counts their tokens: a tokenizer at hand, the server, or nobody (then words count).

Knows nothing of when they are sent.
"""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from benchmarks.bench.arrivals import lines_of
from benchmarks.bench.dialects import Dialect, Options
from benchmarks.bench.http import NoAnswer, Server

Count = Callable[[str], Awaitable[int]]

COMMON = ("time year people way day man thing woman life child world school state family student group country "
          "problem hand part place case week company system program question work number night point home water "
          "room mother area money story fact month lot right study book eye job word business issue side kind "
          "head house service friend father power hour game line end member law car city name team minute idea "
          "body back parent face level office door health person art war history party result change morning "
          "reason research girl guy moment air teacher force education")
WORDS = COMMON.split()
TOO_LONG = {400, 413, 422}  # what a server answers that counts only what its model can read
MOST_REPEATED = 300  # characters of an answer
FILLING = (" a", " the", ".", " of", "!", "a", "-", "x", " 1")


class TooLong(NoAnswer):
    """A text has more tokens than the server counts."""


async def count_words(text: str) -> int:
    return len(text.split())


def counted_by_tokenizer(name: str) -> Count:
    """A folder with tokenizer.json, or the file."""
    path = Path(name, "tokenizer.json") if Path(name).is_dir() else Path(name)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise ValueError(f"--tokenizer: cannot read {path}: {error}") from None

    async def count(text: str) -> int:
        return len(tokenizer.encode(text).ids)
    return count


def counted_by_server(server: Server, dialect: Dialect, options: Options, fields: str) -> Count:
    async def count(text: str) -> int:
        body = json.dumps(dialect.counting(text, options)).encode()
        status, answer = await server.whole(server.request("POST", "/tokenize", fields, body))
        if status in TOO_LONG:
            raise TooLong(f"/tokenize was answered with {status}: {answer.decode(errors='replace')[:MOST_REPEATED]}")
        if status != 200:
            raise NoAnswer(f"/tokenize was answered with {status}")
        return length(json.loads(answer))
    return count


def length(answer: Any) -> int:
    """A list of tokens, or an object with their number."""
    if isinstance(answer, dict):
        return int(answer["count"]) if "count" in answer else len(answer["tokens"])
    return len(answer)


async def counter(server: Server, dialect: Dialect, options: Options, fields: str, tokenizer: str) -> tuple[Count, str]:
    """The best there is, and what it counts."""
    if tokenizer:
        return counted_by_tokenizer(tokenizer), "tokens"
    count = counted_by_server(server, dialect, options, fields)
    try:
        await count("a b")
    except (NoAnswer, ValueError, KeyError, TypeError):
        return count_words, "words"
    return count, "tokens"


async def fit(head: str, wanted: int, count: Count, random: Random) -> str:
    """A text that begins with `head` and has so many tokens, or as few more as the head alone has. Raises NoAnswer if
    they are more than the server counts."""
    words = random.choices(WORDS, k=wanted)

    async def fits(text: str) -> bool:
        try:
            return await count(text) <= wanted
        except TooLong:
            return False

    def text(kept: int) -> str:
        return " ".join([head, *words[:kept]] if head else words[:max(kept, 1)])

    least, most = 0, wanted  # as many words fit, and so many more do not
    while most - least > 1:
        kept = (least + most) // 2
        least, most = (kept, most) if await fits(text(kept)) else (least, kept)
    return await filled(text(least), wanted, count)


async def filled(text: str, wanted: int, count: Count) -> str:
    """In small steps, each of which brings no more than is missing."""
    has = await count(text)
    while has < wanted:
        refused = None
        for piece in FILLING:
            try:
                more = await count(text + piece)
            except TooLong as error:
                refused = error
                continue
            if has < more <= wanted:
                text, has = text + piece, more
                break
        else:
            if refused is not None:
                raise refused
            break
    return text


def read_prompts(path: Path) -> list[tuple[str, int | None]]:
    """A prompt on each line: plain text, a JSON string, or an object with `prompt` and perhaps `output_tokens`."""
    found = [prompt_of(line, f"{path}, line {number}") for number, line in enumerate(lines_of(path), 1)
             if line.strip()]
    if not found:
        raise ValueError(f"{path} holds no prompt")
    return found


def prompt_of(line: str, where: str) -> tuple[str, int | None]:
    try:
        read = json.loads(line) if line.lstrip()[:1] in {'"', "{"} else line
    except ValueError:
        return line, None
    if isinstance(read, dict):
        if not isinstance(read.get("prompt"), str):
            raise ValueError(f"{where}: an object has no text as `prompt`: {line[:80]}")
        return read["prompt"], output_tokens_of(read.get("output_tokens"), where)
    return read, None


def output_tokens_of(told: Any, where: str) -> int | None:
    """A whole number, or none: neither "10" nor 10.0 nor true is one."""
    if told is None or (type(told) is int and told >= 1):
        return told
    raise ValueError(f"{where}: `output_tokens` must be a whole number from 1, got {json.dumps(told)[:80]}")
