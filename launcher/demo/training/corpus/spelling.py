"""Conversations about the letters of a word: spelled, counted, first and last, backwards.

Every answer first spells the word as c-a-t, so that the rest can be read off its letters.
"""

from random import Random

from launcher.demo.training.conversation import Conversation, DocumentMaker
from launcher.demo.training.corpus.request_variations import choose_weighted, fill_random_template, make_conversation
from launcher.demo.training.corpus.values import invent_word

SPELLING_WORDS = (
    "able", "air", "also", "animal", "answer", "apple", "arm", "ask", "autumn", "baby", "back", "bad", "bag", "bake",
    "ball", "banana", "bank", "bath", "bear", "bed", "bee", "bell", "big", "bird", "black", "blue", "boat", "book",
    "boot", "box", "boy", "branch", "brave", "bread", "bridge", "bright", "brother", "brown", "bus", "butter",
    "button", "cake", "call", "camel", "candle", "cap", "car", "card", "castle", "cat", "chair", "cheese", "cherry",
    "child", "circle", "city", "clean", "clock", "cloud", "coat", "coin", "cold", "colour", "cook", "corn", "count",
    "cow", "crab", "cup", "dance", "dark", "day", "deep", "desk", "dinner", "dish", "doctor", "dog", "doll", "door",
    "dream", "dress", "drink", "drum", "duck", "ear", "early", "east", "easy", "eat", "egg", "eight", "elephant",
    "end", "evening", "eye", "face", "fall", "family", "farm", "fast", "feather", "field", "find", "fire", "fish",
    "five", "flag", "floor", "flower", "fly", "food", "foot", "forest", "fork", "four", "fox", "friend", "frog",
    "fruit", "game", "garden", "gate", "giant", "gift", "giraffe", "girl", "give", "glass", "goat", "gold", "good",
    "goose", "grape", "grass", "green", "grey", "ground", "grow", "hand", "happy", "hat", "head", "heart", "hedge",
    "help", "hen", "hill", "home", "honey", "hook", "horse", "hot", "house", "hungry", "ice", "idea", "ink", "island",
    "jacket", "jam", "jar", "joke", "juice", "jump", "jungle", "key", "kind", "king", "kitchen", "kite", "kitten",
    "knee", "ladder", "lake", "lamp", "laugh", "leaf", "learn", "leg", "lemon", "letter", "light", "lion", "lip",
    "listen", "little", "long", "loud", "love", "lunch", "magic", "map", "market", "milk", "mill", "mirror", "money",
    "monkey", "month", "moon", "morning", "mother", "mountain", "mouse", "mouth", "music", "nail", "name", "neck",
    "needle", "nest", "night", "nine", "north", "nose", "number", "nut", "ocean", "old", "onion", "open", "orange",
    "owl", "page", "paint", "paper", "park", "party", "path", "peach", "pear", "pencil", "penguin", "people", "pepper",
    "piano", "picture", "pig", "pillow", "pink", "pirate", "plant", "plate", "play", "plum", "pocket", "pond",
    "potato", "present", "pretty", "prince", "puppy", "purple", "queen", "quick", "quiet", "rabbit", "rain", "read",
    "red", "rice", "ride", "ring", "river", "road", "robot", "rocket", "roof", "room", "rope", "rose", "round", "run",
    "sad", "salt", "sand", "school", "sea", "seed", "seven", "sheep", "shell", "ship", "shirt", "shoe", "shop",
    "silver", "sing", "sister", "sit", "sky", "sleep", "slow", "small", "smile", "snail", "snow", "soap", "sock",
    "song", "soup", "south", "spider", "spoon", "spring", "square", "star", "stone", "story", "street", "strong",
    "sugar", "summer", "sun", "swan", "sweet", "swim", "table", "tail", "tall", "tea", "teacher", "ten", "tent",
    "three", "tiger", "time", "tired", "tomato", "tooth", "tower", "town", "toy", "train", "tree", "tulip", "turtle",
    "two", "uncle", "under", "village", "violin", "voice", "wall", "warm", "wash", "water", "wave", "wheel", "whale",
    "white", "wind", "window", "wing", "winter", "wolf", "wood", "word", "world", "worm", "write", "yellow", "young",
    "zebra", "zoo")
PALINDROMES = (
    "noon", "level", "eye", "mum", "dad", "kayak", "radar", "wow", "pop", "did", "madam", "refer", "solos", "bob",
    "civic", "deed", "peep", "toot", "anna", "hannah")
SHORT_WORDS = tuple(word for word in SPELLING_WORDS if 3 <= len(word) <= 5)

SPELL_REQUESTS = (
    "Spell {word}", "Spell the word {word}", "How do you spell {word}?", "How is {word} spelled?",
    "How do I spell {word}?", "Spell out {word}", "What is the spelling of {word}?", "Tell me how to spell {word}",
    "How do you write {word}?", "Can you spell {word}?", "Give me the letters of {word}",
    "Which letters are in {word}?", "What letters does {word} have?", "Say the letters of {word}",
    "How is the word {word} spelled?", "Write {word} letter by letter", "Show me the spelling of {word}",
    "Spelling of {word}?", "I want to spell {word}.", "Split {word} into letters", 'Spell "{word}"',
    'How do you spell "{word}"?')
FIRST_LETTER_QUESTIONS = (
    "What is the first letter of {word}?", "Which letter does {word} start with?",
    "What letter does {word} begin with?", "Tell me the first letter of {word}", "First letter of {word}?",
    "With which letter does {word} start?", "Give me the first letter of {word}", "What does {word} start with?",
    "How does the word {word} begin?", "Name the first letter of {word}", "What is the first letter in {word}?",
    'What is the first letter of "{word}"?')
LAST_LETTER_QUESTIONS = (
    "What is the last letter of {word}?", "Which letter does {word} end with?", "What letter does {word} end in?",
    "Tell me the last letter of {word}", "Last letter of {word}?", "With which letter does {word} end?",
    "Give me the last letter of {word}", "What does {word} end with?", "How does the word {word} end?",
    "Name the last letter of {word}", "What is the last letter in {word}?", 'What is the last letter of "{word}"?')
LETTER_COUNT_QUESTIONS = (
    "How many letters does {word} have?", "How many letters are in {word}?", "How many letters has {word}?",
    "Count the letters in {word}", "Count the letters of {word}", "How long is the word {word}?",
    "Tell me how many letters {word} has", "Number of letters in {word}?", "How many letters do I need for {word}?",
    "How many letters are there in {word}?", 'How many letters are in "{word}"?',
    "What is the length of the word {word}?")
BACKWARDS_REQUESTS = (
    "Spell {word} backwards", "Reverse {word}", "Reverse the word {word}", "What is {word} backwards?",
    "Write {word} backwards", "Say {word} backwards", "How do you spell {word} backwards?", "Turn {word} around",
    "Read {word} from the end", "What is {word} in reverse?", "Give me {word} backwards", "{word} backwards?",
    "Can you reverse {word}?", 'Reverse "{word}"')
PALINDROME_QUESTIONS = (
    "Is {word} a palindrome?", "Is the word {word} a palindrome?", "Is {word} the same backwards?",
    "Does {word} read the same backwards?", "Tell me if {word} is a palindrome", "Check if {word} is a palindrome",
    "Can you read {word} both ways?", "Is {word} the same from the end?", "Palindrome or not: {word}?",
    'Is "{word}" a palindrome?')
HAS_LETTER_QUESTIONS = (
    "Is there {article} {letter} in {word}?", "Does {word} have {article} {letter}?",
    "Is the letter {letter} in {word}?", "Does the word {word} have the letter {letter}?",
    "Can you find the letter {letter} in {word}?", "Is {letter} one of the letters of {word}?")
LETTER_FREQUENCY_QUESTIONS = (
    "How many times is the letter {letter} in {word}?", "How often is the letter {letter} in {word}?",
    "Count the letter {letter} in {word}", "How many letters {letter} are in {word}?",
    "How often does {word} have the letter {letter}?", "How many times do you see the letter {letter} in {word}?")
FOLLOW_UP_REQUESTS = (
    "And {word}?", "And the word {word}?", "What about {word}?", "Now {word}.", "{word}?", "And how about {word}?",
    "Then {word}.")
COMMON_LETTERS = "aeioulnrst"
TIMES_IN_WORDS = ("no times", "one time", "two times", "three times", "four times", "five times")


def draw_word(rng: Random) -> str:
    return invent_word(rng) if rng.random() < 0.2 else rng.choice(SPELLING_WORDS)


def hyphenate_letters(word: str) -> str:
    return "-".join(word)


def vary_capitalization(rng: Random, word: str) -> str:
    """Return the word as the question writes it, sometimes with capitals; answers are always in lower case."""
    return rng.choices((word, word.capitalize(), word.upper()), (16, 3, 1))[0]


def make_spelling_answer(word: str, further_text: str = "") -> str:
    return f"The word {word} is spelled {hyphenate_letters(word)}.{' ' if further_text else ''}{further_text}"


def make_spelling_question(rng: Random) -> Conversation:
    word = draw_word(rng)
    return make_conversation(rng, fill_random_template(rng, SPELL_REQUESTS, word=vary_capitalization(rng, word)),
                             make_spelling_answer(word))


def make_first_letter_question(rng: Random) -> Conversation:
    word = draw_word(rng)
    return make_conversation(rng,
                             fill_random_template(rng, FIRST_LETTER_QUESTIONS, word=vary_capitalization(rng, word)),
                             make_spelling_answer(word, f"The first letter is {word[0]}."))


def make_last_letter_question(rng: Random) -> Conversation:
    word = draw_word(rng)
    return make_conversation(rng, fill_random_template(rng, LAST_LETTER_QUESTIONS, word=vary_capitalization(rng, word)),
                             make_spelling_answer(word, f"The last letter is {word[-1]}."))


def make_letter_count_question(rng: Random) -> Conversation:
    word = draw_word(rng)
    return make_conversation(rng,
                             fill_random_template(rng, LETTER_COUNT_QUESTIONS, word=vary_capitalization(rng, word)),
                             make_spelling_answer(word, f"It has {len(word)} letters."))


def make_backwards_question(rng: Random) -> Conversation:
    word = rng.choice(SHORT_WORDS)
    answer = make_spelling_answer(word, f"Backwards it is {hyphenate_letters(word[::-1])}: {word[::-1]}.")
    return make_conversation(rng,
                             fill_random_template(rng, BACKWARDS_REQUESTS, word=vary_capitalization(rng, word)), answer)


def make_palindrome_question(rng: Random) -> Conversation:
    word = rng.choice(PALINDROMES if rng.random() < 0.5 else SHORT_WORDS)
    verdict = "Yes, it is a palindrome." if word == word[::-1] else "No, it is not a palindrome."
    answer = make_spelling_answer(word, f"Backwards it is {hyphenate_letters(word[::-1])}. {verdict}")
    return make_conversation(rng, fill_random_template(rng, PALINDROME_QUESTIONS, word=word), answer)


def make_has_letter_question(rng: Random) -> Conversation:
    word = rng.choice(SPELLING_WORDS)
    letter = rng.choice(word if rng.random() < 0.5 else COMMON_LETTERS)
    verdict = (f"Yes, there is {choose_letter_article(letter)} {letter}." if letter in word
               else f"No, there is no {letter}.")
    return make_conversation(rng, fill_random_template(rng, HAS_LETTER_QUESTIONS, word=word, letter=letter,
                                                       article=choose_letter_article(letter)),
                             make_spelling_answer(word, verdict))


def choose_letter_article(letter: str) -> str:
    return "an" if letter in "aefhilmnorsx" else "a"


def make_letter_frequency_question(rng: Random) -> Conversation:
    word = rng.choice(SPELLING_WORDS)
    letter = rng.choice(word if rng.random() < 0.8 else COMMON_LETTERS)
    answer = make_spelling_answer(word, f"The letter {letter} is there {TIMES_IN_WORDS[word.count(letter)]}.")
    return make_conversation(rng,
                             fill_random_template(rng, LETTER_FREQUENCY_QUESTIONS, word=word, letter=letter), answer)


def make_two_word_spelling(rng: Random) -> Conversation:
    """Return a talk about two words, one after the other."""
    one, two = rng.sample(SPELLING_WORDS, 2)
    return make_conversation(rng, fill_random_template(rng, SPELL_REQUESTS, word=one), make_spelling_answer(one),
                             fill_random_template(rng, FOLLOW_UP_REQUESTS, word=two), make_spelling_answer(two))


WEIGHTED_MAKERS: dict[DocumentMaker,
                      int] = {make_spelling_question: 40, make_first_letter_question: 8, make_last_letter_question: 8,
                              make_letter_count_question: 10, make_backwards_question: 10, make_palindrome_question: 5,
                              make_has_letter_question: 5, make_letter_frequency_question: 4, make_two_word_spelling: 8}


def make_spelling_document(rng: Random) -> Conversation | str:
    return choose_weighted(rng, WEIGHTED_MAKERS)(rng)
