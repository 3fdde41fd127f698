"""Conversations whose answer is only JSON: objects, lists, values from a sentence, objects that match a schema.

All answers have the style of `json.dumps`. Values are copied from the request.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from launcher.demo.training.conversation import Conversation, DocumentMaker, make_one_turn_conversation
from launcher.demo.training.corpus.counting import write_number_in_words
from launcher.demo.training.corpus.json_templates import (
    FIELDS_BY_NESTED_OBJECT,
    FIELDS_BY_SUBJECT,
    KINDS_BY_FIELD,
    SENTENCE_TEMPLATES,
    WORD_LISTS,
)
from launcher.demo.training.corpus.request_variations import (
    choose_weighted,
    fill_random_template,
    fill_slots,
    format_value,
    join_words,
    list_slots,
    make_conversation,
    randomly_lowercase_values,
    split_implied_values,
)
from launcher.demo.training.corpus.values import FOODS, PERSON_NAMES, THINGS, VALUE_KINDS

JsonRecord = dict[str, Any]

OBJECT_REQUESTS = (
    "Give me a JSON object with {pairs}", "Make a JSON object with {pairs}", "Write a JSON object with {pairs}",
    "Write JSON with {pairs}", "Return a JSON object with {pairs}", "Return JSON with {pairs}",
    "Create a JSON object with {pairs}", "Make JSON with {pairs}", "Give me JSON: {pairs}",
    "Put this into JSON: {pairs}", "Turn this into JSON: {pairs}", "Write this as JSON: {pairs}", "{pairs} as JSON.",
    "JSON with {pairs}.", "A JSON object with {pairs}.", "I need a JSON object with {pairs}.",
    "Build a JSON object with {pairs}", "Show me a JSON object with {pairs}", "Answer with JSON: {pairs}",
    "Produce JSON with {pairs}", "Generate a JSON object with {pairs}", "Can I have a JSON object with {pairs}?",
    "Format as JSON: {pairs}", "Convert to JSON: {pairs}", "Make this a JSON object: {pairs}")
EXTRACT_FIELDS_REQUESTS = (
    "Return JSON with {fields}: {sentence}", "{sentence} Return JSON with {fields}.",
    "{sentence} Give me JSON with {fields}.", "Read this and return JSON with {fields}: {sentence}",
    "{sentence} Answer in JSON with {fields}.", "Find {fields} and answer in JSON: {sentence}",
    "Take {fields} from this as JSON: {sentence}", "Extract {fields} as JSON: {sentence}",
    "{sentence} Extract {fields} as JSON.", "{sentence} Write {fields} as JSON.",
    "Make JSON with {fields}: {sentence}", "Give me {fields} as JSON: {sentence}",
    "Look for {fields} and answer in JSON: {sentence}", "{sentence} Put {fields} in a JSON object.",
    "{sentence} I need a JSON object with {fields}.", "Make a JSON object with {fields} from this: {sentence}",
    "Fill a JSON object with {fields}: {sentence}", "Text: {sentence} Return JSON with the fields {fields}.",
    "{sentence} JSON with the keys {fields}, please.", "Make JSON with the keys {fields} from this text: {sentence}")
EXTRACT_ALL_REQUESTS = (
    "Turn this into JSON: {sentence}", "{sentence} Write that as JSON.", "Make JSON of this: {sentence}",
    "Put this into JSON: {sentence}", "Convert to JSON: {sentence}", "{sentence} Give me that as JSON.",
    "Write as JSON: {sentence}", "Write this as a JSON object: {sentence}", "{sentence} Answer in JSON.",
    "Extract the facts as JSON: {sentence}")
EXTRACTION_SYSTEM_MESSAGES = (
    "Return JSON with {fields}.", "Answer in JSON with the fields {fields}.",
    "Only answer with JSON. Fields: {fields}.", "Read what the user says and return JSON with {fields}.",
    "Your answer is a JSON object with {fields}.", "Extract {fields} as JSON.",
    "You return JSON with the keys {fields}. Nothing else.", "Answer only with a JSON object that has {fields}.")
SCHEMA_INSTRUCTIONS = (
    "Answer with JSON that fits this schema: {schema}", "Return JSON for this schema: {schema}",
    "Use this JSON schema: {schema}", "Your answer must fit this JSON schema: {schema}",
    "Reply in JSON. Schema: {schema}", "Fill this JSON schema: {schema}", "Follow this schema: {schema}",
    "Extract JSON with this schema: {schema}", "The schema of the answer: {schema}", "Here is a JSON schema: {schema}")
KIND_LIST_REQUESTS = (
    "Give me a JSON list of {n} {things}", "Make a JSON list of {n} {things}", "Write a JSON list with {n} {things}",
    "A JSON list of {n} {things}.", "A JSON array of {n} {things}.", "List {n} {things} as JSON",
    "Name {n} {things} as a JSON list", "Return a JSON array with {n} {things}", "Give me {n} {things} as JSON",
    "{n} {things} as a JSON list.", "I need a JSON array of {n} {things}.", "Write {n} {things} in a JSON list",
    "Show {n} {things} in a JSON array", "Can I have a JSON list of {n} {things}?", "JSON list with {n} {things}.")
GIVEN_LIST_REQUESTS = (
    "Make a JSON list of {row}", "Put {row} in a JSON list", "Write {row} as a JSON list", "{row} as a JSON list.",
    "Turn this into a JSON list: {row}", "Give me a JSON array with {row}", "JSON list: {row}.",
    "A JSON list with {row}.", "Return a JSON array of {row}", "Convert to a JSON list: {row}",
    "Make a JSON array from {row}", "I need {row} as a JSON array.")
NUMBER_RANGE_REQUESTS = (
    "Give me a JSON list of the numbers from {a} to {b}", "The numbers {a} to {b} as a JSON list.",
    "Make a JSON list from {a} to {b}", "Count from {a} to {b} in a JSON list",
    "Write the numbers {a} to {b} as a JSON array", "JSON array with the numbers from {a} to {b}.",
    "Return the numbers from {a} to {b} as JSON", "Put the numbers {a} to {b} in a JSON list")
SUBJECT_OBJECT_REQUESTS = (
    "Give me a JSON object about {subject}", "Give me JSON for {subject}", "Make a JSON object for {subject}",
    "Write a JSON object about {subject}", "Describe {subject} in JSON", "JSON for {subject}.",
    "I need JSON for {subject}.", "Make up {subject} as JSON", "Show me {subject} as a JSON object",
    "Invent {subject} in JSON", "Write {subject} as JSON", "An example of {subject} in JSON.")
ANY_OBJECT_REQUESTS = (
    "Give me a JSON object", "Write some JSON", "Show me JSON", "Give me some JSON", "Make a JSON object",
    "Write a small JSON object", "An example of JSON.", "Show me a JSON object", "Give me an example of JSON")
ADD_FIELD_REQUESTS = (
    "Add {pair}", "Now add {pair}.", "Add the field {pair}", "Also add {pair}.", "And add {pair}.",
    "Put in {pair} too")
CHANGE_FIELD_REQUESTS = (
    "Change {field} to {value}", "Now change {field} to {value}.", "Set {field} to {value}",
    "Make the {field} {value}", "The {field} should be {value}.")
REMOVE_FIELD_REQUESTS = (
    "Remove {field}", "Take out {field}", "Now remove {field}.", "Remove the {field}", "Leave out the {field}",
    "Delete {field}")
OBJECT_LIST_REQUESTS = (
    "Make a JSON list of objects: {rows}", "Put these in a JSON list: {rows}",
    "Give me a JSON list of objects: {rows}", "Write this as a JSON list: {rows}",
    "Turn these into a JSON array of objects: {rows}", "Make a JSON array with one object each: {rows}",
    "Write as a JSON list: {rows}", "Write these as JSON: {rows}")
FIELD_VALUE_TEMPLATES = (
    "{field} {value}", "{field} {value}", "{field} = {value}", "{field}: {value}", "the {field} {value}",
    "{field} set to {value}", '"{field}": {shown}', '"{field}" as {shown}', "{field}={value}")


def draw_record(rng: Random, fields: Iterable[str]) -> JsonRecord:
    return {field: VALUE_KINDS[KINDS_BY_FIELD[field]].draw(rng) for field in fields}


def draw_record_with_random_fields(rng: Random, max_fields: int = 4) -> JsonRecord:
    fields = rng.sample(sorted(KINDS_BY_FIELD), rng.randint(1, max_fields))
    record = randomly_lowercase_values(rng, draw_record(rng, sorted(fields, key=list(KINDS_BY_FIELD).index)))
    if rng.random() < 0.08:
        record[rng.choice(fields)] = None
    return record


def format_record_in_words(rng: Random, record: Mapping[str, Any], template: str = "") -> str:
    """Write all fields in the same form: `name Mia and age 7`."""
    template = template or rng.choice(FIELD_VALUE_TEMPLATES)
    phrases = [fill_slots(template, {"field": field, "value": value, "shown": json.dumps(value)})
               for field, value in record.items()]
    return ", ".join(phrases) if rng.random() < 0.3 else join_words(phrases)


def make_object_conversation(rng: Random) -> Conversation:
    record = draw_record_with_random_fields(rng)
    return make_conversation(rng, fill_random_template(rng, OBJECT_REQUESTS, pairs=format_record_in_words(rng, record)),
                             json.dumps(record))


def make_nested_object_conversation(rng: Random) -> Conversation:
    """Return a request for an object inside another one; the inner one is described last."""
    nested_field = rng.choice(list(FIELDS_BY_NESTED_OBJECT))
    record = {field: value for field, value in draw_record_with_random_fields(rng, 2).items() if field != nested_field}
    inner = draw_record(rng, rng.sample(FIELDS_BY_NESTED_OBJECT[nested_field], rng.randint(1, 2)))
    form = rng.choice(("{field} {value}", "{field} = {value}", "{field}: {value}"))
    outer_text = (f"{', '.join(format_record_in_words(rng, {field: value}, form) for field, value in record.items())}, "
                  if record else "")
    pairs_text = f"{outer_text}{nested_field} with {format_record_in_words(rng, inner, form)}"
    return make_conversation(rng, fill_random_template(rng, OBJECT_REQUESTS, pairs=pairs_text),
                             json.dumps(record | {nested_field: inner}))


def make_sentence_and_record(rng: Random, template: str) -> tuple[str, JsonRecord]:
    """Return a sentence and the values in it."""
    visible_template, implied_values = split_implied_values(template)
    values = randomly_lowercase_values(rng, draw_record(rng, list_slots(visible_template)))
    return fill_slots(visible_template, values), values | implied_values


def make_extraction_conversation(rng: Random) -> Conversation:
    """Return a request for values from a sentence; the answer has them in the requested order."""
    sentence, record = make_sentence_and_record(rng, rng.choice(SENTENCE_TEMPLATES))
    if rng.random() < 0.2:
        return make_conversation(rng, fill_random_template(rng, EXTRACT_ALL_REQUESTS, sentence=sentence),
                                 json.dumps(record))
    fields = rng.sample(list(record), rng.randint(max(1, len(record) - 1), len(record)))
    return make_field_extraction(rng, sentence, fields, {field: record[field] for field in fields})


def make_field_extraction(rng: Random, sentence: str, fields: Sequence[str],
                          expected_record: JsonRecord) -> Conversation:
    """Return a talk in which the question or the system message names the fields."""
    named = rng.choice((", ".join(fields), join_words(fields)))
    if rng.random() < 0.3:
        return make_one_turn_conversation(sentence, json.dumps(expected_record),
                                          fill_slots(rng.choice(EXTRACTION_SYSTEM_MESSAGES), {"fields": named}))
    return make_conversation(rng, fill_random_template(rng, EXTRACT_FIELDS_REQUESTS, sentence=sentence, fields=named),
                             json.dumps(expected_record))


def make_schema_conversation(rng: Random) -> Conversation:
    """Return a request for an object that matches a schema; fields without a value in the sentence are left out."""
    sentence, record = make_sentence_and_record(rng, rng.choice(SENTENCE_TEMPLATES))
    fields = rng.sample(list(record), len(record))
    extra_fields = [field for field in rng.sample(sorted(KINDS_BY_FIELD), 1) if field not in record
                    and rng.random() < 0.3]
    schema = make_json_schema([*fields, *extra_fields], fields if extra_fields or rng.random() < 0.7 else fields[:1])
    expected_answer = json.dumps({field: record[field] for field in fields})
    instruction = fill_slots(rng.choice(SCHEMA_INSTRUCTIONS), {"schema": json.dumps(schema)})
    if rng.random() < 0.5:
        return make_one_turn_conversation(sentence, expected_answer, instruction)
    return make_conversation(rng, rng.choice((f"{instruction}\n{sentence}", f"{sentence}\n{instruction}",
                                              f"{sentence} {instruction}")), expected_answer)


def make_json_schema(fields: Sequence[str], required: Sequence[str]) -> JsonRecord:
    properties = {field: VALUE_KINDS[KINDS_BY_FIELD[field]].schema for field in fields}
    return {"type": "object", "properties": properties, "required": list(required)}


def make_example_list_conversation(rng: Random) -> Conversation:
    """Return a request for a list of things; the answer is a slice of the list of their kind."""
    things = rng.choice(list(WORD_LISTS))
    words, number = WORD_LISTS[things], rng.randint(2, 5)
    start = rng.randint(0, len(words) - number)
    n = write_number_in_words(number) if rng.random() < 0.5 else number
    return make_conversation(rng, fill_random_template(rng, KIND_LIST_REQUESTS, n=n, things=things),
                             json.dumps(list(words[start:start + number])))


def make_given_list_conversation(rng: Random) -> Conversation:
    numbers = [rng.randint(1, 99) for _ in range(rng.randint(2, 5))]
    words = rng.sample(rng.choice((FOODS, PERSON_NAMES, THINGS)), rng.randint(2, 4))
    items: Sequence[object] = numbers if rng.random() < 0.4 else words
    row = format_value(items) if rng.random() < 0.6 else ", ".join(map(str, items))
    return make_conversation(rng, fill_random_template(rng, GIVEN_LIST_REQUESTS, row=row), json.dumps(items))


def make_number_range_conversation(rng: Random) -> Conversation:
    a = rng.choice((1, 1, rng.randint(2, 30)))
    b = a + rng.randint(2, 9)
    return make_conversation(rng, fill_random_template(rng, NUMBER_RANGE_REQUESTS, a=a, b=b),
                             json.dumps(list(range(a, b + 1))))


def make_object_list_conversation(rng: Random) -> Conversation:
    """Return a request for a list of objects."""
    first, second = ("name", rng.choice(("age", "city", "colour", "food", "points")))
    rows = [draw_record(rng, (first, second)) for _ in range(rng.randint(2, 3))]
    rows_text = "; ".join(format_record_in_words(rng, row, "{field} {value}") for row in rows)
    return make_conversation(rng, fill_random_template(rng, OBJECT_LIST_REQUESTS, rows=rows_text), json.dumps(rows))


def make_invented_object_conversation(rng: Random) -> Conversation:
    subject = rng.choice(list(FIELDS_BY_SUBJECT))
    record = draw_record(rng, FIELDS_BY_SUBJECT[subject])
    question = fill_random_template(rng, ANY_OBJECT_REQUESTS) if subject == "a person" else fill_random_template(
        rng, SUBJECT_OBJECT_REQUESTS, subject=subject)
    return make_conversation(rng, question, json.dumps(record))


def make_object_edit_conversation(rng: Random) -> Conversation:
    """Return a talk whose second turn changes the object of the first one."""
    fields = rng.sample(sorted(KINDS_BY_FIELD), rng.randint(3, 4))
    *first_fields, late = fields
    record = draw_record(rng, first_fields)
    question = fill_random_template(rng, OBJECT_REQUESTS, pairs=format_record_in_words(rng, record))
    edit_request, edited_record = rng.choice((make_add_field_request, make_change_field_request,
                                              make_remove_field_request))(rng, record, late)
    return make_conversation(rng, question, json.dumps(record), edit_request, json.dumps(edited_record))


def make_add_field_request(rng: Random, record: JsonRecord, field: str) -> tuple[str, JsonRecord]:
    added_fields = draw_record(rng, [field])
    return fill_random_template(rng, ADD_FIELD_REQUESTS,
                                pair=format_record_in_words(rng, added_fields,
                                                            "{field} {value}")), record | added_fields


def make_change_field_request(rng: Random, record: JsonRecord, _: str) -> tuple[str, JsonRecord]:
    field = rng.choice(list(record))
    new = draw_record(rng, [field])
    while new[field] == record[field]:
        new = draw_record(rng, [field])
    return fill_random_template(rng, CHANGE_FIELD_REQUESTS, field=field, value=format_value(new[field])), record | new


def make_remove_field_request(rng: Random, record: JsonRecord, _: str) -> tuple[str, JsonRecord]:
    field = rng.choice(list(record))
    return fill_random_template(rng, REMOVE_FIELD_REQUESTS,
                                field=field), {name: value for name, value in record.items() if name != field}


WEIGHTED_MAKERS: dict[DocumentMaker, int] = {make_object_conversation: 24, make_nested_object_conversation: 8,
                                             make_extraction_conversation: 20, make_schema_conversation: 14,
                                             make_example_list_conversation: 8, make_given_list_conversation: 6,
                                             make_number_range_conversation: 3, make_object_list_conversation: 4,
                                             make_invented_object_conversation: 8, make_object_edit_conversation: 6}


def make_json_document(rng: Random) -> Conversation | str:
    return choose_weighted(rng, WEIGHTED_MAKERS)(rng)
