"""Talks whose answer is only JSON: objects, lists, values from a sentence, objects that match a schema.

All answers have the style of `json.dumps`. Values are copied from the request.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from launcher.demo.training.corpus.asking import chat, drawn, fill, listed, parted, put, slots_of, spoken, typed
from launcher.demo.training.corpus.counting import in_words
from launcher.demo.training.corpus.fields import FIELDS, INNER, LISTS, SENTENCES, SUBJECTS
from launcher.demo.training.corpus.values import FOODS, KINDS, NAMES, THINGS
from launcher.demo.training.talk import Maker, Talk, asked

Record = dict[str, Any]

OBJECT = (
    "Give me a JSON object with {pairs}", "Make a JSON object with {pairs}", "Write a JSON object with {pairs}",
    "Write JSON with {pairs}", "Return a JSON object with {pairs}", "Return JSON with {pairs}",
    "Create a JSON object with {pairs}", "Make JSON with {pairs}", "Give me JSON: {pairs}",
    "Put this into JSON: {pairs}", "Turn this into JSON: {pairs}", "Write this as JSON: {pairs}", "{pairs} as JSON.",
    "JSON with {pairs}.", "A JSON object with {pairs}.", "I need a JSON object with {pairs}.",
    "Build a JSON object with {pairs}", "Show me a JSON object with {pairs}", "Answer with JSON: {pairs}",
    "Produce JSON with {pairs}", "Generate a JSON object with {pairs}", "Can I have a JSON object with {pairs}?",
    "Format as JSON: {pairs}", "Convert to JSON: {pairs}", "Make this a JSON object: {pairs}")
TAKE = (
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
TAKE_ALL = (
    "Turn this into JSON: {sentence}", "{sentence} Write that as JSON.", "Make JSON of this: {sentence}",
    "Put this into JSON: {sentence}", "Convert to JSON: {sentence}", "{sentence} Give me that as JSON.",
    "Write as JSON: {sentence}", "Write this as a JSON object: {sentence}", "{sentence} Answer in JSON.",
    "Extract the facts as JSON: {sentence}")
ORDERS = (
    "Return JSON with {fields}.", "Answer in JSON with the fields {fields}.",
    "Only answer with JSON. Fields: {fields}.", "Read what the user says and return JSON with {fields}.",
    "Your answer is a JSON object with {fields}.", "Extract {fields} as JSON.",
    "You return JSON with the keys {fields}. Nothing else.", "Answer only with a JSON object that has {fields}.")
FITTING = (
    "Answer with JSON that fits this schema: {schema}", "Return JSON for this schema: {schema}",
    "Use this JSON schema: {schema}", "Your answer must fit this JSON schema: {schema}",
    "Reply in JSON. Schema: {schema}", "Fill this JSON schema: {schema}", "Follow this schema: {schema}",
    "Extract JSON with this schema: {schema}", "The schema of the answer: {schema}", "Here is a JSON schema: {schema}")
LIST_OF = (
    "Give me a JSON list of {n} {things}", "Make a JSON list of {n} {things}", "Write a JSON list with {n} {things}",
    "A JSON list of {n} {things}.", "A JSON array of {n} {things}.", "List {n} {things} as JSON",
    "Name {n} {things} as a JSON list", "Return a JSON array with {n} {things}", "Give me {n} {things} as JSON",
    "{n} {things} as a JSON list.", "I need a JSON array of {n} {things}.", "Write {n} {things} in a JSON list",
    "Show {n} {things} in a JSON array", "Can I have a JSON list of {n} {things}?", "JSON list with {n} {things}.")
LIST_HELD = (
    "Make a JSON list of {row}", "Put {row} in a JSON list", "Write {row} as a JSON list", "{row} as a JSON list.",
    "Turn this into a JSON list: {row}", "Give me a JSON array with {row}", "JSON list: {row}.",
    "A JSON list with {row}.", "Return a JSON array of {row}", "Convert to a JSON list: {row}",
    "Make a JSON array from {row}", "I need {row} as a JSON array.")
LIST_RUN = (
    "Give me a JSON list of the numbers from {a} to {b}", "The numbers {a} to {b} as a JSON list.",
    "Make a JSON list from {a} to {b}", "Count from {a} to {b} in a JSON list",
    "Write the numbers {a} to {b} as a JSON array", "JSON array with the numbers from {a} to {b}.",
    "Return the numbers from {a} to {b} as JSON", "Put the numbers {a} to {b} in a JSON list")
ABOUT = (
    "Give me a JSON object about {subject}", "Give me JSON for {subject}", "Make a JSON object for {subject}",
    "Write a JSON object about {subject}", "Describe {subject} in JSON", "JSON for {subject}.",
    "I need JSON for {subject}.", "Make up {subject} as JSON", "Show me {subject} as a JSON object",
    "Invent {subject} in JSON", "Write {subject} as JSON", "An example of {subject} in JSON.")
ANY = (
    "Give me a JSON object", "Write some JSON", "Show me JSON", "Give me some JSON", "Make a JSON object",
    "Write a small JSON object", "An example of JSON.", "Show me a JSON object", "Give me an example of JSON")
ADD = (
    "Add {pair}", "Now add {pair}.", "Add the field {pair}", "Also add {pair}.", "And add {pair}.",
    "Put in {pair} too")
CHANGE = (
    "Change {field} to {value}", "Now change {field} to {value}.", "Set {field} to {value}",
    "Make the {field} {value}", "The {field} should be {value}.")
REMOVE = (
    "Remove {field}", "Take out {field}", "Now remove {field}.", "Remove the {field}", "Leave out the {field}",
    "Delete {field}")
ROWS = (
    "Make a JSON list of objects: {rows}", "Put these in a JSON list: {rows}",
    "Give me a JSON list of objects: {rows}", "Write this as a JSON list: {rows}",
    "Turn these into a JSON array of objects: {rows}", "Make a JSON array with one object each: {rows}",
    "Write as a JSON list: {rows}", "Write these as JSON: {rows}")
FORMS = (
    "{field} {value}", "{field} {value}", "{field} = {value}", "{field}: {value}", "the {field} {value}",
    "{field} set to {value}", '"{field}": {shown}', '"{field}" as {shown}', "{field}={value}")


def drawn_for(rng: Random, fields: Iterable[str]) -> Record:
    return {field: KINDS[FIELDS[field]].draw(rng) for field in fields}


def some_record(rng: Random, most: int = 4) -> Record:
    fields = rng.sample(sorted(FIELDS), rng.randint(1, most))
    record = typed(rng, drawn_for(rng, sorted(fields, key=list(FIELDS).index)))
    if rng.random() < 0.08:
        record[rng.choice(fields)] = None
    return record


def pairs(rng: Random, record: Mapping[str, Any], form: str = "") -> str:
    """Write all fields in the same form: `name Mia and age 7`."""
    form = form or rng.choice(FORMS)
    said = [fill(form, {"field": field, "value": value, "shown": json.dumps(value)}) for field, value in record.items()]
    return ", ".join(said) if rng.random() < 0.3 else listed(said)


def given(rng: Random) -> Talk:
    record = some_record(rng)
    return chat(rng, put(rng, OBJECT, pairs=pairs(rng, record)), json.dumps(record))


def nested(rng: Random) -> Talk:
    """Return a request for an object inside another one; the inner one is described last."""
    inside = rng.choice(list(INNER))
    record = {field: value for field, value in some_record(rng, 2).items() if field != inside}
    inner = drawn_for(rng, rng.sample(INNER[inside], rng.randint(1, 2)))
    form = rng.choice(("{field} {value}", "{field} = {value}", "{field}: {value}"))
    before = f"{', '.join(pairs(rng, {field: value}, form) for field, value in record.items())}, " if record else ""
    said = f"{before}{inside} with {pairs(rng, inner, form)}"
    return chat(rng, put(rng, OBJECT, pairs=said), json.dumps(record | {inside: inner}))


def told(rng: Random, way: str) -> tuple[str, Record]:
    """Return a sentence and the values in it."""
    said, meant = parted(way)
    values = typed(rng, drawn_for(rng, slots_of(said)))
    return fill(said, values), values | meant


def taken(rng: Random) -> Talk:
    """Return a request for values from a sentence; the answer has them in the requested order."""
    sentence, record = told(rng, rng.choice(SENTENCES))
    if rng.random() < 0.2:
        return chat(rng, put(rng, TAKE_ALL, sentence=sentence), json.dumps(record))
    fields = rng.sample(list(record), rng.randint(max(1, len(record) - 1), len(record)))
    return asked_for(rng, sentence, fields, {field: record[field] for field in fields})


def asked_for(rng: Random, sentence: str, fields: Sequence[str], wanted: Record) -> Talk:
    """Return a talk in which the question or the system message names the fields."""
    named = rng.choice((", ".join(fields), listed(fields)))
    if rng.random() < 0.3:
        return asked(sentence, json.dumps(wanted), fill(rng.choice(ORDERS), {"fields": named}))
    return chat(rng, put(rng, TAKE, sentence=sentence, fields=named), json.dumps(wanted))


def fitting(rng: Random) -> Talk:
    """Return a request for an object that matches a schema; fields without a value in the sentence are left out."""
    sentence, record = told(rng, rng.choice(SENTENCES))
    fields = rng.sample(list(record), len(record))
    untold = [field for field in rng.sample(sorted(FIELDS), 1) if field not in record and rng.random() < 0.3]
    schema = schema_of([*fields, *untold], fields if untold or rng.random() < 0.7 else fields[:1])
    wanted = json.dumps({field: record[field] for field in fields})
    order = fill(rng.choice(FITTING), {"schema": json.dumps(schema)})
    if rng.random() < 0.5:
        return asked(sentence, wanted, order)
    return chat(rng, rng.choice((f"{order}\n{sentence}", f"{sentence}\n{order}", f"{sentence} {order}")), wanted)


def schema_of(fields: Sequence[str], required: Sequence[str]) -> Record:
    properties = {field: KINDS[FIELDS[field]].schema for field in fields}
    return {"type": "object", "properties": properties, "required": list(required)}


def list_of(rng: Random) -> Talk:
    """Return a request for a list of things; the answer is a slice of the list of their kind."""
    things = rng.choice(list(LISTS))
    known, number = LISTS[things], rng.randint(2, 5)
    start = rng.randint(0, len(known) - number)
    n = in_words(number) if rng.random() < 0.5 else number
    return chat(rng, put(rng, LIST_OF, n=n, things=things), json.dumps(list(known[start:start + number])))


def list_held(rng: Random) -> Talk:
    numbers = [rng.randint(1, 99) for _ in range(rng.randint(2, 5))]
    words = rng.sample(rng.choice((FOODS, NAMES, THINGS)), rng.randint(2, 4))
    held: Sequence[object] = numbers if rng.random() < 0.4 else words
    row = spoken(held) if rng.random() < 0.6 else ", ".join(map(str, held))
    return chat(rng, put(rng, LIST_HELD, row=row), json.dumps(held))


def list_run(rng: Random) -> Talk:
    a = rng.choice((1, 1, rng.randint(2, 30)))
    b = a + rng.randint(2, 9)
    return chat(rng, put(rng, LIST_RUN, a=a, b=b), json.dumps(list(range(a, b + 1))))


def of_several(rng: Random) -> Talk:
    """Return a request for a list of objects."""
    first, second = ("name", rng.choice(("age", "city", "colour", "food", "points")))
    rows = [drawn_for(rng, (first, second)) for _ in range(rng.randint(2, 3))]
    said = "; ".join(pairs(rng, row, "{field} {value}") for row in rows)
    return chat(rng, put(rng, ROWS, rows=said), json.dumps(rows))


def made_up_of(rng: Random) -> Talk:
    subject = rng.choice(list(SUBJECTS))
    record = drawn_for(rng, SUBJECTS[subject])
    question = put(rng, ANY) if subject == "a person" else put(rng, ABOUT, subject=subject)
    return chat(rng, question, json.dumps(record))


def changed(rng: Random) -> Talk:
    """Return a talk whose second turn changes the object of the first one."""
    fields = rng.sample(sorted(FIELDS), rng.randint(3, 4))
    *before, late = fields
    record = drawn_for(rng, before)
    question = put(rng, OBJECT, pairs=pairs(rng, record))
    order, later = rng.choice((added_to, set_in, removed_from))(rng, record, late)
    return chat(rng, question, json.dumps(record), order, json.dumps(later))


def added_to(rng: Random, record: Record, field: str) -> tuple[str, Record]:
    more = drawn_for(rng, [field])
    return put(rng, ADD, pair=pairs(rng, more, "{field} {value}")), record | more


def set_in(rng: Random, record: Record, _: str) -> tuple[str, Record]:
    field = rng.choice(list(record))
    new = drawn_for(rng, [field])
    while new[field] == record[field]:
        new = drawn_for(rng, [field])
    return put(rng, CHANGE, field=field, value=spoken(new[field])), record | new


def removed_from(rng: Random, record: Record, _: str) -> tuple[str, Record]:
    field = rng.choice(list(record))
    return put(rng, REMOVE, field=field), {name: value for name, value in record.items() if name != field}


MAKERS: dict[Maker, int] = {
    given: 24, nested: 8, taken: 20, fitting: 14, list_of: 8, list_held: 6, list_run: 3, of_several: 4, made_up_of: 8,
    changed: 6}


def objects(rng: Random) -> Talk | str:
    return drawn(rng, MAKERS)(rng)
