"""Prompts of given lengths. A local tokenizer or the server counts their tokens; without either, words count."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer

from benchmarks.bench.load.arrivals import lines_of
from benchmarks.bench.load.dialects import Dialect, Options
from benchmarks.bench.load.http import NoAnswer, Server

Count = Callable[[str], Awaitable[int]]

COMMON = ("time year people way day man thing woman life child world school state family student group country "
          "problem hand part place case week company system program question work number night point home water "
          "room mother area money story fact month lot right study book eye job word business issue side kind "
          "head house service friend father power hour game line end member law car city name team minute idea "
          "body back parent face level office door health person art war history party result change morning "
          "reason research girl guy moment air teacher force education")
WORDS = COMMON.split()
TOO_LONG = {400, 413, 422}  # statuses of servers that only tokenize texts within their model's limit
MOST_REPEATED = 300  # characters of an answer that an error quotes
FILLING = (" a", " the", ".", " of", "!", "a", "-", "x", " 1")


class TooLong(NoAnswer):
    """The text is longer than what the server tokenizes."""


async def count_words(text: str) -> int:
    return len(text.split())


def counted_by_tokenizer(name: str) -> Count:
    """Return a counter that uses tokenizer.json; `name` is this file or its folder."""
    path = Path(name, "tokenizer.json") if Path(name).is_dir() else Path(name)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no more specific class
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
    """Return the number of tokens in an answer to /tokenize: a list, or an object with `count` or `tokens`."""
    if isinstance(answer, dict):
        return int(answer["count"]) if "count" in answer else len(answer["tokens"])
    return len(answer)


async def counter(server: Server, dialect: Dialect, options: Options, fields: str, tokenizer: str) -> tuple[Count, str]:
    """Return the best available counter and its unit."""
    if tokenizer:
        return counted_by_tokenizer(tokenizer), "tokens"
    count = counted_by_server(server, dialect, options, fields)
    try:
        await count("a b")
    except (NoAnswer, ValueError, KeyError, TypeError):
        return count_words, "words"
    return count, "tokens"


async def fit(head: str, wanted: int, count: Count, random: Random) -> str:
    """Return a text that begins with `head` and has `wanted` tokens, or those of `head` if it alone has more.

    Raises NoAnswer if the server does not tokenize a text of that length."""
    words = random.choices(WORDS, k=wanted)

    async def fits(text: str) -> bool:
        try:
            return await count(text) <= wanted
        except TooLong:
            return False

    def text(kept: int) -> str:
        return " ".join([head, *words[:kept]] if head else words[:max(kept, 1)])

    least, most = 0, wanted  # `least` words fit, `most` are taken not to
    while most - least > 1:
        kept = (least + most) // 2
        least, most = (kept, most) if await fits(text(kept)) else (least, kept)
    return await filled(text(least), wanted, count)


async def filled(text: str, wanted: int, count: Count) -> str:
    """Append short pieces until the text has `wanted` tokens; none may add more than is missing."""
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
    """Read a prompt from each line: plain text, a JSON string, or an object with `prompt` and maybe `output_tokens`."""
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
    """Return a positive integer or None. Raises ValueError otherwise, also for "10", 10.0 and true."""
    if told is None or (type(told) is int and told >= 1):
        return told
    raise ValueError(f"{where}: `output_tokens` must be a whole number from 1, got {json.dumps(told)[:80]}")
