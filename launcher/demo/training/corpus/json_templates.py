"""Fields of JSON objects with the kinds of their values, and sentences that contain such values.

A sentence has fields as slots, and after ` #` the values that it implies.
"""

from launcher.demo.training.corpus.values import (
    ANIMALS,
    COLOURS,
    DAYS,
    FOODS,
    FRUIT,
    JOBS,
    MONTHS,
    PERSON_NAMES,
    THINGS,
)

KINDS_BY_FIELD = {
    "name": "name", "age": "age", "city": "city", "colour": "colour", "pet": "animal", "food": "food", "job": "job",
    "friend": "name", "country": "country", "title": "title", "year": "year", "pages": "hundreds", "price": "price",
    "count": "few", "item": "thing", "size": "size", "day": "day", "month": "month", "time": "clock", "room": "room",
    "code": "code", "language": "language", "subject": "subject", "legs": "legs", "animal": "animal", "fruit": "fruit",
    "dish": "dish", "word": "word", "number": "number", "happy": "yes", "ready": "yes", "open": "yes", "new": "yes",
    "tired": "yes", "home": "city", "team": "title", "score": "number", "id": "hundreds", "type": "plain",
    "mood": "mood", "user": "name", "email": "email", "points": "number", "floor": "few", "key": "code",
    "place": "city",
}
SENTENCE_TEMPLATES = (
    "{name} is {age} years old and lives in {city}.", "{name} is {age} years old.", "{name} lives in {city}.",
    "My name is {name} and I am {age} years old.", "I am {name}, I am {age} and I live in {city}.",
    "{name} from {city} is {age}.", "{name} is a {job} from {city}.", "{name} works as a {job} in {city}.",
    "{name}, who is {age}, works as a {job}.", "{name} speaks {language} and lives in {city}.",
    "{name} likes {food} and the colour {colour}.", "The pet of {name} is a {animal}. It is {colour}.",
    "{name} has a {colour} {item}.", "{name} has {count} friends and lives in {city}.",
    "The {item} is {colour} and costs {price} euros.", "I bought a {item} for {price} euros on {day}.",
    "The {colour} {item} in the {room} costs {price} euros.", "There are {count} eggs in the {room}.",
    "The book {title} was written by {name} in {year}.", "{title} is a book with {pages} pages.",
    "The film {title} is from {year}.", "The song {title} is by {name}.", "We meet on {day} at {time} in {city}.",
    "The train to {city} leaves at {time}.", "On {day} at {time} we eat {dish}.", "{name} comes on {day} at {time}.",
    "The bus {code} goes to {city} at {time}.", "Room {code} is on floor {floor}.", "{name} made {points} points.",
    "{name} is in team {team} and has {points} points.", "My friend {name} was born in {month} {year}.",
    "{name} learns {subject} and {language}.", "The parcel {code} goes to {name} in {city}.",
    "The code of {name} is {code}.", "Send a {size} {item} to {name} in {city}.", "{name} is {mood} on {day}.",
    "{name} is happy and lives in {city}. #happy=true", "{name} is not happy. #happy=false",
    "{name} is {age} and has no pet. #pet=null", "{name} has no job. #job=null", "{name} lives alone. #friend=null",
    "The {item} is new and costs {price} euros. #new=true", "The {item} is old and costs {price} euros. #new=false",
    "The shop in {city} is open. #open=true", "The shop in {city} is closed on {day}. #open=false",
    "The {dish} is ready at {time}. #ready=true", "The {dish} is not ready. #ready=false",
    "{name} is tired and stays in {city}. #tired=true", "{name} is not tired. #tired=false")
WORD_LISTS = {
    "colours": COLOURS, "animals": ANIMALS, "fruits": FRUIT, "foods": FOODS, "names": PERSON_NAMES, "days": DAYS,
    "months": MONTHS, "jobs": JOBS, "things": THINGS,
}
FIELDS_BY_SUBJECT = {
    "a person": ("name", "age", "city"), "a man": ("name", "age", "city"), "a woman": ("name", "age", "city"),
    "a child": ("name", "pet", "city"), "a friend": ("name", "age", "city"), "an animal": ("animal", "colour", "legs"),
    "a pet": ("name", "animal", "colour"), "a book": ("title", "name", "pages"), "a film": ("title", "year"),
    "a song": ("title", "name"), "a shop": ("name", "city", "open"), "a meal": ("dish", "price"),
    "a house": ("city", "colour"), "a user": ("id", "name", "email"), "a thing": ("item", "colour", "price"),
    "a team": ("team", "points"), "a meeting": ("day", "time", "city"), "a game": ("title", "points"),
    "a city": ("city", "country"),
}
FIELDS_BY_NESTED_OBJECT = {  # nested objects, with the fields that fit them
    "owner": ("name", "age", "city"), "friend": ("name", "age", "pet"), "address": ("city", "code", "floor"),
    "home": ("city", "room", "colour"), "book": ("title", "year", "pages"), "pet": ("name", "age", "colour"),
    "box": ("size", "colour", "count"), "date": ("day", "month", "year"), "author": ("name", "age", "language"),
    "part": ("code", "price", "ready"), "place": ("city", "country"), "user": ("id", "name", "happy"),
}
