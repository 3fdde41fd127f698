"""Values in requests: names, cities, numbers, titles, short messages, made-up words, each kind with its JSON type.

The lists are long and some words are made up, so that the model learns to copy values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

DrawFunction = Callable[[Random], Any]

PERSON_NAMES = (
    "Mia", "Tom", "Anna", "Ben", "Lily", "Sam", "Eva", "Max", "Emma", "Leo", "Nora", "Jack", "Ella", "Paul", "Ida",
    "Finn", "Rosa", "Carl", "Lucy", "Omar", "Clara", "Hugo", "Jane", "Noah", "Sara", "Adam", "Zoe", "Luke", "Maya",
    "Peter", "Lena", "John", "Ruth", "David", "Alma", "Oscar", "Nina", "Felix", "Olga", "Simon", "Iris", "Mark", "Amy",
    "Theo", "Kate", "Karim", "Julia", "Anton", "Mary", "Daniel", "Rita", "Jonas", "Helen", "Victor", "Laura", "Martin",
    "Alice", "Henry", "Vera", "Oliver", "Maria", "George", "Ada", "Robert", "Greta", "Ali", "Tina", "Erik", "Lisa",
    "Ivan", "Dora", "Bruno", "Mona", "Frank", "Elsa", "Ravi", "Yuki", "Chen", "Amir", "Pablo")
CITIES = (
    "Rome", "Paris", "London", "Berlin", "Oslo", "Madrid", "Vienna", "Prague", "Lisbon", "Dublin", "Athens", "Cairo",
    "Tokyo", "Delhi", "Lima", "Boston", "Chicago", "Sydney", "Toronto", "Moscow", "Warsaw", "Helsinki", "Zurich",
    "Milan", "Naples", "Munich", "Hamburg", "Bergen", "Porto", "Seville", "Lyon", "Nice", "Bern", "Basel", "Graz",
    "Turin", "Venice", "Florence", "Denver", "Dallas", "Miami", "Seattle", "Austin", "Havana", "Quito", "Bogota",
    "Nairobi", "Lagos", "Accra", "Tunis", "Seoul", "Hanoi", "Manila", "Beijing", "Mumbai", "Dubai", "Perth", "Leeds",
    "York", "Bath")
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "pink", "orange", "purple", "grey")
ANIMALS = (
    "cat", "dog", "horse", "cow", "pig", "hen", "duck", "goat", "sheep", "fox", "bear", "wolf", "lion", "tiger",
    "mouse", "rabbit", "frog", "fish", "bird", "owl", "snake", "monkey", "zebra", "camel", "bee", "whale")
FRUIT = ("apple", "pear", "plum", "banana", "cherry", "orange", "lemon", "peach", "melon", "grape", "berry", "fig")
FOODS = (
    "bread", "milk", "cheese", "eggs", "butter", "rice", "soup", "salt", "sugar", "tea", "honey", "jam", "apples",
    "pears", "beans", "fish", "nuts", "cake", "juice", "carrots", "onions", "flour")
DISHES = (
    "soup", "pizza", "salad", "pasta", "pancakes", "apple pie", "rice and beans", "fish soup", "cake", "noodles",
    "vegetable stew", "bread rolls", "cheese toast", "fried eggs", "plum cake", "tomato soup")
THINGS = (
    "lamp", "table", "chair", "book", "ball", "hat", "coat", "cup", "bag", "box", "bed", "clock", "phone", "bike",
    "boat", "drum", "kite", "key", "pen", "shoe", "spoon", "mirror", "tent", "piano", "radio", "camera", "basket")
ROOMS = ("kitchen", "bedroom", "bathroom", "hall", "garage", "cellar", "attic", "office", "garden", "living room")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December")
SKY_STATES = ("sunny", "cloudy", "windy", "rainy", "foggy", "snowy", "clear")
COUNTRIES = (
    "Italy", "France", "Spain", "Norway", "Egypt", "Japan", "India", "Peru", "Canada", "Greece", "Kenya", "Brazil",
    "Poland", "Chile", "Ireland", "Sweden")
SCHOOL_SUBJECTS = ("maths", "music", "art", "sport", "history", "reading", "science", "drawing", "singing", "chess")
JOBS = ("teacher", "baker", "farmer", "doctor", "pilot", "painter", "singer", "cook", "driver", "nurse", "sailor")
TOPICS = (
    "red foxes", "old trains", "the moon", "black holes", "green tea", "wild horses", "paper boats", "small islands",
    "stone bridges", "sea birds", "deep water", "bread ovens", "garden birds", "tall towers", "snow and ice",
    "the history of chess", "how bees fly", "how rain is made", "why leaves fall", "the best kites", "old maps")
LANGUAGES = ("French", "German", "Spanish", "Italian", "Dutch", "Greek", "Polish", "Latin", "Swedish", "Turkish")
MESSAGES = (
    "I am late", "dinner is ready", "see you soon", "happy birthday", "the train is late", "I am at home",
    "call me back", "we won the game", "the cat is back", "good luck", "I found the key", "it is raining",
    "come to the park", "thank you for the cake", "the door is open", "bring some milk", "I will be there at noon",
    "the book is great", "meet me at the station", "where are you", "I miss you", "the bus is here", "lunch is at one",
    "all is well")
CHORE_TEXTS = (
    "feed the cat", "buy milk", "call the doctor", "water the plants", "wash the car", "clean the kitchen",
    "pay the rent", "pack the bags", "write to Anna", "read the letter", "bake a cake", "fix the lamp", "walk the dog",
    "get the bread", "pick up the bike", "plan the trip", "learn the song", "tidy the desk")
TITLE_ADJECTIVES = ("Blue", "Red", "Old", "Little", "Golden", "Silver", "Happy", "Green", "Silent", "Wild", "White",
                    "Lucky")
TITLE_NOUNS = (
    "Moon", "River", "Boat", "Garden", "Fox", "Star", "Rain", "Train", "House", "Bird", "Forest", "Lion", "Bell",
    "Road", "Mill", "Bridge", "Summer", "Island")
WORD_STARTS = (
    "bal", "bel", "bim", "bol", "dan", "dor", "fal", "fen", "fli", "gal", "gim", "hol", "jat", "kel", "kip", "lam",
    "lod", "mel", "mip", "nor", "pal", "plo", "ral", "rin", "sol", "sna", "tam", "tol", "trel", "vam", "vel", "win",
    "wol", "yon", "zel", "zim", "zor")
WORD_ENDS = (
    "a", "bo", "da", "den", "do", "fen", "ga", "ka", "kin", "la", "lo", "lin", "mo", "na", "nit", "po", "ra", "rin",
    "ro", "sa", "sen", "ta", "ton", "vo", "wen", "zo")


@dataclass(frozen=True, slots=True)
class ValueGenerator:
    """Generator of random values of one kind, with their JSON schema."""

    schema: dict[str, Any]  # JSON schema of the value
    draw: DrawFunction


def invent_word(rng: Random) -> str:
    """Return a made-up word, most likely a new one."""
    middle = rng.choice(WORD_STARTS) if rng.random() < 0.2 else ""
    return rng.choice(WORD_STARTS) + middle + rng.choice(WORD_ENDS)


def draw_title(rng: Random) -> str:
    return f"{rng.choice(('', 'The '))}{rng.choice(TITLE_ADJECTIVES)} {rng.choice(TITLE_NOUNS)}"


def draw_clock_time(rng: Random) -> str:
    return f"{rng.randint(1, 23)}:{rng.choice(('00', '00', '15', '30', '30', '45', '10', '20', '50'))}"


def draw_price(rng: Random) -> float | int:
    return rng.choice((rng.randint(2, 90), rng.randint(1, 40) + 0.5))


def draw_code(rng: Random) -> str:
    return f"{rng.choice('ABCDEFGHKLMNPRSTUVWXYZ')}{rng.randint(10, 999)}"


def draw_email(rng: Random) -> str:
    return f"{rng.choice(PERSON_NAMES).lower()}@{invent_word(rng)}.com"


def make_word_draw_function(words: Sequence[str]) -> DrawFunction:
    return lambda rng: rng.choice(words)


def make_word_or_invented_draw_function(words: Sequence[str], invented_share: float = 0.2) -> DrawFunction:
    return lambda rng: invent_word(rng) if rng.random() < invented_share else rng.choice(words)


def make_name_or_invented_draw_function(words: Sequence[str], invented_share: float = 0.2) -> DrawFunction:
    return lambda rng: invent_word(rng).capitalize() if rng.random() < invented_share else rng.choice(words)


def make_integer_draw_function(low: int, high: int) -> DrawFunction:
    return lambda rng: rng.randint(low, high)


def make_word_list_draw_function(words: Sequence[str]) -> DrawFunction:
    return lambda rng: rng.sample(words, rng.choice((2, 2, 3)))


def make_string_generator(draw: DrawFunction) -> ValueGenerator:
    return ValueGenerator({"type": "string"}, draw)


def make_integer_generator(low: int, high: int) -> ValueGenerator:
    return ValueGenerator({"type": "integer"}, make_integer_draw_function(low, high))


def make_enum_generator(*words: str) -> ValueGenerator:
    return ValueGenerator({"type": "string", "enum": list(words)}, make_word_draw_function(words))


VALUE_KINDS = {
    "name": make_string_generator(make_name_or_invented_draw_function(PERSON_NAMES)),
    "city": make_string_generator(make_name_or_invented_draw_function(CITIES)),
    "colour": make_string_generator(make_word_draw_function(COLOURS)),
    "animal": make_string_generator(make_word_or_invented_draw_function(ANIMALS, 0.1)),
    "fruit": make_string_generator(make_word_draw_function(FRUIT)),
    "food": make_string_generator(make_word_draw_function(FOODS)),
    "dish": make_string_generator(make_word_draw_function(DISHES)),
    "thing": make_string_generator(make_word_or_invented_draw_function(THINGS)),
    "room": make_string_generator(make_word_draw_function(ROOMS)),
    "day": make_string_generator(make_word_draw_function(DAYS)),
    "month": make_string_generator(make_word_draw_function(MONTHS)),
    "sky": make_string_generator(make_word_draw_function(SKY_STATES)),
    "subject": make_string_generator(make_word_draw_function(SCHOOL_SUBJECTS)),
    "job": make_string_generator(make_word_draw_function(JOBS)),
    "topic": make_string_generator(make_word_or_invented_draw_function(TOPICS, 0.1)),
    "language": make_string_generator(make_word_draw_function(LANGUAGES)),
    "message": make_string_generator(make_word_draw_function(MESSAGES)),
    "chore": make_string_generator(make_word_draw_function(CHORE_TEXTS)),
    "title": make_string_generator(draw_title), "clock": make_string_generator(draw_clock_time),
    "code": make_string_generator(draw_code), "word": make_string_generator(invent_word),
    "plain": make_string_generator(make_word_or_invented_draw_function(ANIMALS + THINGS + FRUIT, 0.3)),
    "digit": make_integer_generator(1, 9), "few": make_integer_generator(2, 9),
    "legs": ValueGenerator({"type": "integer"}, lambda rng: rng.choice((0, 2, 4, 4, 6, 8))),
    "number": make_integer_generator(1, 99),
    "dozen": make_integer_generator(2, 12), "minutes": make_integer_generator(2, 60),
    "age": make_integer_generator(2, 80),
    "degrees": make_integer_generator(2, 30),
    "warmth": make_integer_generator(12, 28), "hundreds": make_integer_generator(100, 999),
    "year": make_integer_generator(1900, 2030),
    "country": make_string_generator(make_word_draw_function(COUNTRIES)),
    "email": make_string_generator(draw_email), "price": ValueGenerator({"type": "number"}, draw_price),
    "yes": ValueGenerator({"type": "boolean"}, lambda rng: rng.random() < 0.5),
    "foods": ValueGenerator({"type": "array", "items": {"type": "string"}}, make_word_list_draw_function(FOODS)),
    "names": ValueGenerator({"type": "array", "items": {"type": "string"}}, make_word_list_draw_function(PERSON_NAMES)),
    "unit": make_enum_generator("celsius", "fahrenheit"),
    "size": make_enum_generator("small", "medium", "large"),
    "way": make_enum_generator("left", "right", "forward", "back"),
    "shape": make_enum_generator("circle", "square", "star", "triangle"),
    "money": make_enum_generator("euros", "dollars", "pounds", "yen"),
    "speed": make_enum_generator("slow", "fast"), "mood": make_enum_generator("happy", "sad", "calm", "angry"),}
