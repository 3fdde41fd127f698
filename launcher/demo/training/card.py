"""Write the card of the demo model: `python -P -m launcher.demo.training.card FOLDER --losses SEEN UNSEEN --minutes N`.

The card shows the model's answers to twenty prompts, and how many answers of each kind the judges accept. Its other
text is in card.md.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from string import Template

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from launcher.demo.training.corpus.spelling import spelling
from launcher.demo.training.corpus.sums import sums
from launcher.demo.training.judge import (
    Trial,
    call_trials,
    counts_right,
    json_trials,
    right_call_trials,
    talks,
    tool_trials,
)
from launcher.demo.training.talk import Maker, Message, Tool
from launcher.demo.training.train import TOKENS

WORDS = Path(__file__).with_name("card.md")
LONGEST = 220  # maximum tokens of an answer
NEW = 20_261_121  # a seed that training does not use
COUNT = 20  # trials of each kind


def tool(name: str, about: str, *properties: str) -> Tool:
    """Return a tool whose parameters are all required strings."""
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in properties},
              "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


@dataclass(frozen=True, slots=True)
class Prompt:
    said: str
    tools: Sequence[Tool] = ()
    bare: bool = False  # plain text to continue, without the chat template

    def rendered(self, tokenizer: PreTrainedTokenizerFast) -> str:
        return self.said if self.bare else rendered(tokenizer, [{"role": "user", "content": self.said}], self.tools)

    def entry(self, answer: str) -> str:
        """Return the card's entry for an answer."""
        offered = " and ".join(f"`{item['function']['name']}`" for item in self.tools)
        return f"**{self.said}**{f' (with the tools {offered})' if offered else ''}\n\n```\n{answer.strip()}\n```\n"


WEATHER = tool("get_weather", "Tells the weather in a city.", "city")
MAIL = tool("send_mail", "Sends a mail.", "to", "text")
ALARM = tool("set_alarm", "Sets an alarm.", "time")
SCHEMA = '{"type": "object", "properties": {"item": {"type": "string"}, "price": {"type": "integer"}}}'
PROMPTS = (
    Prompt("Tell me a story."), Prompt("Tell me a story about a frog with a lamp."),
    Prompt("Tell me a short story about a brave princess in the forest."), Prompt("Once upon a time", bare=True),
    Prompt("Count to twenty."), Prompt("Count from 8 to 15 in words."), Prompt("Count down from 10."),
    Prompt("What is 7 + 5?"), Prompt("What is 34 + 25?"), Prompt("What is 12 minus 4?"),
    Prompt("How do you spell elephant?"), Prompt("How many letters does the word garden have?"),
    Prompt("Hello! Who are you?"), Prompt("Is a daisy a flower?"), Prompt("What day comes after Monday?"),
    Prompt("What does freedom mean?"),
    Prompt("Read this and return JSON with name and food: Clara likes eggs."),
    Prompt(f"The bike costs 58 euros. Answer with JSON that fits this schema: {SCHEMA}"),
    Prompt("What is the weather in Paris?", (WEATHER, ALARM)), Prompt("Wake me at 6:30.", (WEATHER, MAIL, ALARM)),
)


def rendered(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    return str(tokenizer.apply_chat_template(
        list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=True))


class Answering:
    """Model run by transformers in float32 with greedy decoding."""

    def __init__(self, folder: Path) -> None:
        disable_progress_bar()  # type: ignore[no-untyped-call]
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self._model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.inference_mode()
    def answer(self, prompt: str) -> str:
        asked = self.tokenizer(prompt, return_tensors="pt")
        said = self._model.generate(**asked, max_new_tokens=LONGEST, do_sample=False)  # type: ignore[misc]
        return str(self.tokenizer.decode(said[0, asked["input_ids"].shape[1]:], skip_special_tokens=True))

    def passed(self, trials: Iterable[Trial]) -> int:
        return sum(trial.passes(self.answer(rendered(self.tokenizer, trial.messages, trial.tools))) for trial in trials)


def counting_trials() -> Iterator[Trial]:
    """Yield trials of counting up to each number from 11 to 20, and down from each number from 2 to 11."""
    for number in range(2, 2 + COUNT // 2):
        yield counting_trial(f"Count to {number + 9}.", 1, number + 9)
        yield counting_trial(f"Count down from {number}.", number, 1)


def counting_trial(asked: str, first: int, last: int) -> Trial:
    return Trial([{"role": "user", "content": asked}], (), {}, lambda text: counts_right(text, first, last))


def exact_trials(maker: Maker) -> Iterator[Trial]:
    """Yield questions whose answer must match exactly."""
    for talk in islice(talks(NEW, (maker,)), COUNT):
        *asked, answer = talk.messages
        yield exact_trial(asked, answer["content"])


def exact_trial(asked: Sequence[Message], right: str) -> Trial:
    return Trial(asked, (), {}, lambda text: text == right)


TRIALS: Mapping[str, Callable[[], Iterable[Trial]]] = {
    "counts right, up to twenty and down from eleven": counting_trials,
    "gives a small sum, to the letter as it was taught": lambda: exact_trials(sums),
    "spells, to the letter as it was taught": lambda: exact_trials(spelling),
    "gives valid JSON with the fields that were asked for": lambda: json_trials(NEW, COUNT),
    "makes a well-formed call, where a tool is to be called": lambda: call_trials(NEW, COUNT),
    "calls a tool that was offered, with arguments that obey its schema": lambda: tool_trials(NEW, COUNT),
    "calls the right tool with the right arguments": lambda: right_call_trials(NEW, COUNT),
}


def card(folder: Path, losses: Sequence[float], minutes: int, words: str) -> str:
    answering = Answering(folder)
    return Template(words).substitute(
        checksum=sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        seen=f"{losses[0]:.3f}", unseen=f"{losses[1]:.3f}", minutes=minutes, tokens=TOKENS // 1_000_000,
        trials="\n".join(f"| {kind} | {answering.passed(make())} |" for kind, make in TRIALS.items()),
        prompts="\n".join(prompt.entry(answering.answer(prompt.rendered(answering.tokenizer))) for prompt in PROMPTS))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--losses", type=float, nargs=2, required=True, help="as the training printed them")
    asked.add_argument("--minutes", type=int, required=True, help="of the training, on two cores")
    given = asked.parse_args()
    (given.folder / "README.md").write_text(card(given.folder, given.losses, given.minutes, WORDS.read_text()))


if __name__ == "__main__":
    main()
