"""Write the card of the demo model: `python -P -m launcher.demo.training.model_card FOLDER --losses SEEN UNSEEN
--minutes N`.

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

from launcher.demo.training.conversation import DocumentMaker, Message, Tool
from launcher.demo.training.corpus.arithmetic import make_arithmetic_document
from launcher.demo.training.corpus.spelling import make_spelling_document
from launcher.demo.training.evaluation_cases import (
    EvaluationCase,
    generate_evaluation_conversations,
    is_correct_count,
    make_exact_call_cases,
    make_json_cases,
    make_valid_call_cases,
    make_wellformed_call_cases,
)
from launcher.demo.training.train import NUM_TRAINING_TOKENS

CARD_TEMPLATE_FILE = Path(__file__).with_name("card.md")
MAX_ANSWER_TOKENS = 220  # maximum tokens of an answer
EVALUATION_SEED = 20_261_121  # a seed that training does not use
NUM_CASES_PER_KIND = 20  # cases of each kind


def make_tool(name: str, description: str, *properties: str) -> Tool:
    """Return a tool whose parameters are all required strings."""
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in properties},
              "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


@dataclass(frozen=True, slots=True)
class CardPrompt:
    """Prompt whose answer the model card shows."""

    text: str
    tools: Sequence[Tool] = ()
    is_plain_text: bool = False  # plain text to continue, without the chat template

    def render_prompt(self, tokenizer: PreTrainedTokenizerFast) -> str:
        return self.text if self.is_plain_text else render_chat_template(tokenizer,
                                                                         [{"role": "user", "content": self.text}],
                                                                         self.tools)

    def format_card_entry(self, answer: str) -> str:
        """Return the card's entry for an answer."""
        offered = " and ".join(f"`{item['function']['name']}`" for item in self.tools)
        return f"**{self.text}**{f' (with the tools {offered})' if offered else ''}\n\n```\n{answer.strip()}\n```\n"


WEATHER_TOOL = make_tool("get_weather", "Tells the weather in a city.", "city")
MAIL_TOOL = make_tool("send_mail", "Sends a mail.", "to", "text")
ALARM_TOOL = make_tool("set_alarm", "Sets an alarm.", "time")
ITEM_PRICE_SCHEMA = '{"type": "object", "properties": {"item": {"type": "string"}, "price": {"type": "integer"}}}'
CARD_PROMPTS = (
    CardPrompt("Tell me a story."), CardPrompt("Tell me a story about a frog with a lamp."),
    CardPrompt("Tell me a short story about a brave princess in the forest."),
    CardPrompt("Once upon a time", is_plain_text=True),
    CardPrompt("Count to twenty."), CardPrompt("Count from 8 to 15 in words."), CardPrompt("Count down from 10."),
    CardPrompt("What is 7 + 5?"), CardPrompt("What is 34 + 25?"), CardPrompt("What is 12 minus 4?"),
    CardPrompt("How do you spell elephant?"), CardPrompt("How many letters does the word garden have?"),
    CardPrompt("Hello! Who are you?"), CardPrompt("Is a daisy a flower?"), CardPrompt("What day comes after Monday?"),
    CardPrompt("What does freedom mean?"),
    CardPrompt("Read this and return JSON with name and food: Clara likes eggs."),
    CardPrompt(f"The bike costs 58 euros. Answer with JSON that fits this schema: {ITEM_PRICE_SCHEMA}"),
    CardPrompt("What is the weather in Paris?", (WEATHER_TOOL, ALARM_TOOL)),
    CardPrompt("Wake me at 6:30.", (WEATHER_TOOL, MAIL_TOOL, ALARM_TOOL)),)


def render_chat_template(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message],
                         tools: Sequence[Tool] = ()) -> str:
    return str(tokenizer.apply_chat_template(
        list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=True))


class GreedyModel:
    """Model run by transformers in float32 with greedy decoding."""

    def __init__(self, folder: Path) -> None:
        disable_progress_bar()  # type: ignore[no-untyped-call]
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self._model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)

    @torch.inference_mode()
    def generate_answer(self, prompt: str) -> str:
        inputs = self.tokenizer(prompt, return_tensors="pt")
        output_ids = self._model.generate(**inputs, max_new_tokens=MAX_ANSWER_TOKENS, do_sample=False)  # type: ignore[misc]
        return str(self.tokenizer.decode(output_ids[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))

    def count_passed_cases(self, cases: Iterable[EvaluationCase]) -> int:
        return sum(case.accepts_answer(self.generate_answer(render_chat_template(self.tokenizer, case.messages,
                                                                                 case.tools))) for case in cases)


def generate_counting_cases() -> Iterator[EvaluationCase]:
    """Yield cases of counting up to each number from 11 to 20, and down from each number from 2 to 11."""
    for number in range(2, 2 + NUM_CASES_PER_KIND // 2):
        yield make_counting_case(f"Count to {number + 9}.", 1, number + 9)
        yield make_counting_case(f"Count down from {number}.", number, 1)


def make_counting_case(question: str, first: int, last: int) -> EvaluationCase:
    return EvaluationCase([{"role": "user", "content": question}], (), {},
                          lambda text: is_correct_count(text, first, last))


def generate_exact_match_cases(maker: DocumentMaker) -> Iterator[EvaluationCase]:
    """Yield questions whose answer must match exactly."""
    for conversation in islice(generate_evaluation_conversations(EVALUATION_SEED, (maker,)), NUM_CASES_PER_KIND):
        *prompt_messages, answer = conversation.messages
        yield make_exact_match_case(prompt_messages, answer["content"])


def make_exact_match_case(prompt_messages: Sequence[Message], expected_answer: str) -> EvaluationCase:
    return EvaluationCase(prompt_messages, (), {}, lambda text: text == expected_answer)


CASE_MAKERS_BY_KIND: Mapping[str, Callable[[], Iterable[EvaluationCase]]] = {
    "counts right, up to twenty and down from eleven": generate_counting_cases,
    "gives a small sum, to the letter as it was taught": lambda: generate_exact_match_cases(make_arithmetic_document),
    "spells, to the letter as it was taught": lambda: generate_exact_match_cases(make_spelling_document),
    "gives valid JSON with the fields that were asked for": lambda: make_json_cases(EVALUATION_SEED,
                                                                                    NUM_CASES_PER_KIND),
    "makes a well-formed call, where a tool is to be called": lambda: make_wellformed_call_cases(EVALUATION_SEED,
                                                                                                 NUM_CASES_PER_KIND),
    "calls a tool that was offered, with arguments that obey its schema": lambda: make_valid_call_cases(
        EVALUATION_SEED, NUM_CASES_PER_KIND),
    "calls the right tool with the right arguments": lambda: make_exact_call_cases(EVALUATION_SEED,
                                                                                   NUM_CASES_PER_KIND),}


def make_model_card(folder: Path, losses: Sequence[float], minutes: int, template: str) -> str:
    demo_model = GreedyModel(folder)
    return Template(template).substitute(checksum=sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
                                         seen=f"{losses[0]:.3f}", unseen=f"{losses[1]:.3f}", minutes=minutes,
                                         tokens=NUM_TRAINING_TOKENS // 1_000_000,
                                         trials="\n".join(f"| {kind} | {demo_model.count_passed_cases(make_cases())} |"
                                                          for kind, make_cases in CASE_MAKERS_BY_KIND.items()),
                                         prompts="\n".join(prompt.format_card_entry(demo_model.generate_answer(
                                             prompt.render_prompt(demo_model.tokenizer))) for prompt in CARD_PROMPTS))


def main() -> None:
    argument_parser = argparse.ArgumentParser(description=__doc__)
    argument_parser.add_argument("folder", type=Path)
    argument_parser.add_argument("--losses", type=float, nargs=2, required=True, help="as the training printed them")
    argument_parser.add_argument("--minutes", type=int, required=True, help="of the training, on two cores")
    arguments = argument_parser.parse_args()
    (arguments.folder / "README.md").write_text(make_model_card(arguments.folder, arguments.losses, arguments.minutes,
                                                                CARD_TEMPLATE_FILE.read_text()))


if __name__ == "__main__":
    main()
