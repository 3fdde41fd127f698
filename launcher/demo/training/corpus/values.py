"""Values in requests: names, cities, numbers, titles, short messages, made-up words, each kind with its JSON type.

The lists are long and some words are made up, so that the model learns to copy values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Draw = Callable[[Random], Any]

NAMES = (
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
SKIES = ("sunny", "cloudy", "windy", "rainy", "foggy", "snowy", "clear")
COUNTRIES = (
    "Italy", "France", "Spain", "Norway", "Egypt", "Japan", "India", "Peru", "Canada", "Greece", "Kenya", "Brazil",
    "Poland", "Chile", "Ireland", "Sweden")
SUBJECTS = ("maths", "music", "art", "sport", "history", "reading", "science", "drawing", "singing", "chess")
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
CHORES = (
    "feed the cat", "buy milk", "call the doctor", "water the plants", "wash the car", "clean the kitchen",
    "pay the rent", "pack the bags", "write to Anna", "read the letter", "bake a cake", "fix the lamp", "walk the dog",
    "get the bread", "pick up the bike", "plan the trip", "learn the song", "tidy the desk")
KINDLY = ("Blue", "Red", "Old", "Little", "Golden", "Silver", "Happy", "Green", "Silent", "Wild", "White", "Lucky")
NOUNLY = (
    "Moon", "River", "Boat", "Garden", "Fox", "Star", "Rain", "Train", "House", "Bird", "Forest", "Lion", "Bell",
    "Road", "Mill", "Bridge", "Summer", "Island")
STARTS = (
    "bal", "bel", "bim", "bol", "dan", "dor", "fal", "fen", "fli", "gal", "gim", "hol", "jat", "kel", "kip", "lam",
    "lod", "mel", "mip", "nor", "pal", "plo", "ral", "rin", "sol", "sna", "tam", "tol", "trel", "vam", "vel", "win",
    "wol", "yon", "zel", "zim", "zor")
ENDS = (
    "a", "bo", "da", "den", "do", "fen", "ga", "ka", "kin", "la", "lo", "lin", "mo", "na", "nit", "po", "ra", "rin",
    "ro", "sa", "sen", "ta", "ton", "vo", "wen", "zo")


@dataclass(frozen=True, slots=True)
class Kind:
    schema: dict[str, Any]  # JSON schema of the value
    draw: Draw


def made_up(rng: Random) -> str:
    """Return a made-up word, most likely a new one."""
    middle = rng.choice(STARTS) if rng.random() < 0.2 else ""
    return rng.choice(STARTS) + middle + rng.choice(ENDS)


def title(rng: Random) -> str:
    return f"{rng.choice(('', 'The '))}{rng.choice(KINDLY)} {rng.choice(NOUNLY)}"


def clock(rng: Random) -> str:
    return f"{rng.randint(1, 23)}:{rng.choice(('00', '00', '15', '30', '30', '45', '10', '20', '50'))}"


def price(rng: Random) -> float | int:
    return rng.choice((rng.randint(2, 90), rng.randint(1, 40) + 0.5))


def code(rng: Random) -> str:
    return f"{rng.choice('ABCDEFGHKLMNPRSTUVWXYZ')}{rng.randint(10, 999)}"


def email(rng: Random) -> str:
    return f"{rng.choice(NAMES).lower()}@{made_up(rng)}.com"


def one_of(words: Sequence[str]) -> Draw:
    return lambda rng: rng.choice(words)


def or_made_up(words: Sequence[str], share: float = 0.2) -> Draw:
    return lambda rng: made_up(rng) if rng.random() < share else rng.choice(words)


def proper(words: Sequence[str], share: float = 0.2) -> Draw:
    return lambda rng: made_up(rng).capitalize() if rng.random() < share else rng.choice(words)


def within(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low, high)


def some(words: Sequence[str]) -> Draw:
    return lambda rng: rng.sample(words, rng.choice((2, 2, 3)))


def text(draw: Draw) -> Kind:
    return Kind({"type": "string"}, draw)


def whole(low: int, high: int) -> Kind:
    return Kind({"type": "integer"}, within(low, high))


def choice(*words: str) -> Kind:
    return Kind({"type": "string", "enum": list(words)}, one_of(words))


KINDS = {
    "name": text(proper(NAMES)), "city": text(proper(CITIES)), "colour": text(one_of(COLOURS)),
    "animal": text(or_made_up(ANIMALS, 0.1)), "fruit": text(one_of(FRUIT)), "food": text(one_of(FOODS)),
    "dish": text(one_of(DISHES)), "thing": text(or_made_up(THINGS)), "room": text(one_of(ROOMS)),
    "day": text(one_of(DAYS)), "month": text(one_of(MONTHS)), "sky": text(one_of(SKIES)),
    "subject": text(one_of(SUBJECTS)), "job": text(one_of(JOBS)), "topic": text(or_made_up(TOPICS, 0.1)),
    "language": text(one_of(LANGUAGES)), "message": text(one_of(MESSAGES)), "chore": text(one_of(CHORES)),
    "title": text(title), "clock": text(clock), "code": text(code), "word": text(made_up),
    "plain": text(or_made_up(ANIMALS + THINGS + FRUIT, 0.3)), "digit": whole(1, 9), "few": whole(2, 9),
    "legs": Kind({"type": "integer"}, lambda rng: rng.choice((0, 2, 4, 4, 6, 8))), "number": whole(1, 99),
    "dozen": whole(2, 12), "minutes": whole(2, 60), "age": whole(2, 80), "degrees": whole(2, 30),
    "warmth": whole(12, 28), "hundreds": whole(100, 999), "year": whole(1900, 2030), "country": text(one_of(COUNTRIES)),
    "email": text(email), "price": Kind({"type": "number"}, price),
    "yes": Kind({"type": "boolean"}, lambda rng: rng.random() < 0.5),
    "foods": Kind({"type": "array", "items": {"type": "string"}}, some(FOODS)),
    "names": Kind({"type": "array", "items": {"type": "string"}}, some(NAMES)), "unit": choice("celsius", "fahrenheit"),
    "size": choice("small", "medium", "large"), "way": choice("left", "right", "forward", "back"),
    "shape": choice("circle", "square", "star", "triangle"), "money": choice("euros", "dollars", "pounds", "yen"),
    "speed": choice("slow", "fast"), "mood": choice("happy", "sad", "calm", "angry"),
}
