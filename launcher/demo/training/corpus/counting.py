"""Conversations about sequences of numbers and letters: counting, neighbours, comparing and sorting."""

from random import Random
from string import ascii_lowercase

from launcher.demo.training.conversation import Conversation, DocumentMaker
from launcher.demo.training.corpus.request_variations import (
    capitalize_first_letter,
    choose_weighted,
    fill_random_template,
    join_words,
    lowercase_first_letter,
    make_conversation,
)

ONES_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
TENS_WORDS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
COUNTABLE_NOUNS = (
    "apple", "ball", "bird", "boat", "book", "cat", "coin", "cow", "dog", "duck", "egg", "frog", "hat", "hen", "horse",
    "kite", "pear", "pig", "star", "stone", "tree")
DETERMINERS = ("the", "my", "your", "our", "one", "this")
ADJECTIVES = ("big", "old", "little", "good", "brave", "happy", "quiet", "kind")
SUBJECT_NOUNS = ("cat", "dog", "bird", "fox", "duck", "horse", "girl", "boy", "mouse")
VERBS = ("runs", "sleeps", "sings", "plays", "eats", "jumps", "waits")
ADVERBIALS = ("in the rain", "at home", "on the grass", "by the sea", "all day", "here", "with me")

COUNT_UP_REQUESTS = (
    "Count to {n}", "Count up to {n}", "Count from 1 to {n}", "Count from one to {n}", "Count until {n}",
    "Count till {n}", "Count for me up to {n}", "Start at 1 and count to {n}", "Say the numbers from 1 to {n}",
    "Give me the numbers 1 to {n}", "List the numbers from 1 to {n}", "Write the numbers from 1 to {n}",
    "Tell me the numbers up to {n}", "Name all numbers from 1 to {n}", "Show me how you count to {n}",
    "Can you count to {n}?", "How do you count to {n}?", "Do you know how to count to {n}?",
    "I want to hear you count to {n}.", "Numbers from 1 to {n}.", "Numbers 1 to {n}.",
    "What are the numbers from 1 to {n}?", "What are the first {n} numbers?", "1 to {n}.", "From 1 to {n}.")
COUNT_IN_WORDS_REQUESTS = (
    "Count to {n} in words", "Count from 1 to {n} in words", "Count to {n} with words",
    "Write the numbers from 1 to {n} as words", "Count to {n}, in words", "Say the numbers 1 to {n} in words",
    "Spell out the numbers from 1 to {n}", "Write out the numbers up to {n} in words", "Use words to count to {n}",
    "Numbers from 1 to {n} in words.", "Can you count to {n} in words?", "How do you count to {n} in words?",
    "Count up to {n} in words", "List the numbers 1 to {n} in words", "Without digits, count to {n}")
COUNT_BETWEEN_REQUESTS = (
    "Count from {a} to {b}", "Count from {a} up to {b}", "Start at {a} and count to {b}",
    "Start counting at {a} and stop at {b}", "Say the numbers from {a} to {b}", "List the numbers from {a} to {b}",
    "Give me all numbers from {a} to {b}", "Write the numbers {a} to {b}", "What are the numbers from {a} to {b}?",
    "Numbers {a} to {b}.", "Numbers from {a} to {b}.", "Can you count from {a} to {b}?",
    "How do you count from {a} to {b}?", "Begin with {a} and count up to {b}", "Count on from {a} to {b}",
    "{a} to {b}.")
COUNT_DOWN_REQUESTS = (
    "Count backwards from {a} to {b}", "Count down from {a} to {b}", "Count back from {a} to {b}",
    "Start at {a} and count down to {b}", "Say the numbers from {a} down to {b}",
    "List the numbers backwards from {a} to {b}", "Can you count backwards from {a} to {b}?",
    "Count in reverse from {a} to {b}", "Count from {a} down to {b}", "Numbers from {a} down to {b}.",
    "Give me the numbers from {a} back to {b}", "How do you count down from {a} to {b}?",
    "Write the numbers from {a} down to {b}", "Go backwards from {a} to {b}", "From {a} down to {b}.")
COUNT_DOWN_TO_ONE_REQUESTS = (
    "Count backwards from {a}", "Count down from {a}", "Count back from {a}", "Do a countdown from {a}",
    "Give me a countdown from {a}", "Start a countdown at {a}", "Can you count backwards from {a}?",
    "Countdown from {a}.")
COUNT_BY_STEPS_REQUESTS = (
    "Count by {step} to {b}", "Count in {step} to {b}", "Count to {b} by {step}", "Count to {b} in {step}",
    "Count up to {b} by {step}", "Can you count by {step} to {b}?", "Count by {step} up to {b}",
    "Skip count by {step} to {b}", "Count by {step} until {b}", "Counting by {step} to {b}.",
    "Say the numbers to {b} in steps of {size}", "Count in steps of {size} to {b}", "Count to {b} in steps of {size}",
    "Go up by {step} to {b}", "How do you count by {step} to {b}?", "List the numbers to {b}, counting by {step}")
STEP_NAMES = {2: "twos", 5: "fives", 10: "tens", 3: "threes", 4: "fours"}
COUNT_THINGS_REQUESTS = (
    "Count {n} {things}", "Count to {n} with {things}", "Can you count {n} {things}?",
    "Count {n} {things} for a child", "Help me count {n} {things}", "Show me how to count {n} {things}",
    "Let us count {n} {things}.", "Count my {n} {things}")
NUMBER_AFTER_QUESTIONS = (
    "What comes after {n}?", "Which number comes after {n}?", "What number is after {n}?",
    "What is the next number after {n}?", "What number follows {n}?", "What follows {n}?",
    "Tell me the number after {n}", "Name the number that comes after {n}", "And what comes after {n}?",
    "After {n} comes what?", "Which number is next after {n}?", "Number after {n}?", "What is one more than {n}?",
    "Which number follows {n}?", "Give me the number after {n}")
NUMBER_BEFORE_QUESTIONS = (
    "What comes before {n}?", "Which number comes before {n}?", "What number is before {n}?",
    "What is the number right before {n}?", "Tell me the number before {n}", "Name the number that comes before {n}",
    "Before {n} comes what?", "Number before {n}?", "What is one less than {n}?", "Give me the number before {n}",
    "Which number is just before {n}?", "What number do I say before {n}?")
WHICH_IS_BIGGER_QUESTIONS = (
    "Which is {more}, {a} or {b}?", "What is {more}, {a} or {b}?", "Which number is {more}: {a} or {b}?",
    "Is {a} or {b} {more}?", "{a} or {b}, which is {more}?", "Which one is {more}, {a} or {b}?",
    "Tell me which is {more}, {a} or {b}", "Which of {a} and {b} is {more}?", "What number is {more}: {a} or {b}?",
    "Tell me the {more} number: {a} or {b}", "Of {a} and {b}, which is {more}?", "Choose the {more} one: {a} or {b}",
    "Find the {more} number: {a}, {b}", "Pick the {more} number: {a} or {b}", "{a} and {b}: which is {more}?")
IS_BIGGER_QUESTIONS = (
    "Is {a} {more} than {b}?", "Is it true that {a} is {more} than {b}?", "{a} is {more} than {b}, right?",
    "Would you say {a} is {more} than {b}?", "Is the number {a} {more} than {b}?")
SORT_REQUESTS = (
    "Sort these numbers: {row}", "Sort: {row}", "Put these numbers in order: {row}", "Order these numbers: {row}",
    "Sort the numbers {row}", "Arrange these numbers: {row}", "Put {row} in order", "Sort {row}",
    "Sort from small to big: {row}", "Which order is right for {row}?", "Order the numbers {row}",
    "Arrange from smallest to biggest: {row}", "Sort this list: {row}", "Give me these numbers in order: {row}",
    "What is the right order of {row}?")
SORT_DESCENDING_REQUESTS = (
    "Sort from big to small: {row}", "Sort these numbers backwards: {row}",
    "Put these numbers in order from big to small: {row}", "Order from biggest to smallest: {row}",
    "Sort {row} from big to small", "Arrange from big to small: {row}")
NEXT_IN_SEQUENCE_QUESTIONS = (
    "What comes next: {row}?", "What is the next number: {row}?", "Go on: {row}", "Which number is next: {row}?",
    "Continue: {row}", "What number comes next in {row}?", "Find the next number: {row}", "What is next after {row}?",
    "{row}: what comes next?", "Tell me the next number: {row}")
EVEN_OR_ODD_QUESTIONS = (
    "Is {n} even or odd?", "Is {n} odd or even?", "Is the number {n} even or odd?", "Tell me if {n} is even or odd",
    "Even or odd: {n}?", "{n}: even or odd?", "Is {n} an even number or an odd one?", "What is {n}, even or odd?")
ALPHABET_REQUESTS = (
    "Say the alphabet", "Say the ABC", "Tell me the alphabet", "What is the alphabet?", "Write the alphabet",
    "List the letters of the alphabet", "What are the letters of the alphabet?", "Give me all letters",
    "Can you say the alphabet?", "Do you know the alphabet?", "Name all letters from a to z", "Say your ABC",
    "Recite the alphabet", "Show me the alphabet", "The alphabet.", "All letters from a to z.")
LETTER_RANGE_REQUESTS = (
    "Say the letters from {a} to {b}", "List the letters from {a} to {b}", "Letters from {a} to {b}.",
    "Give me the letters {a} to {b}", "What are the letters from {a} to {b}?", "Write the letters from {a} to {b}",
    "Name the letters from {a} to {b}", "Say the alphabet from {a} to {b}", "Which letters go from {a} to {b}?",
    "The alphabet from {a} to {b}.")
LETTER_AFTER_QUESTIONS = (
    "What letter comes after {a}?", "Which letter comes after {a}?", "What is the letter after {a}?",
    "Which letter follows {a}?", "What is the next letter after {a}?", "Tell me the letter after {a}",
    "What comes after the letter {a}?", "Name the letter that follows {a}", "After {a} comes which letter?",
    "Letter after {a}?")
LETTER_BEFORE_QUESTIONS = (
    "What letter comes before {a}?", "Which letter comes before {a}?", "What is the letter before {a}?",
    "Tell me the letter before {a}", "What comes before the letter {a}?", "Name the letter before {a}",
    "Letter before {a}?")
COUNT_WORDS_REQUESTS = (
    "How many words are in this: {text}?", "How many words are here: {text}?", "Count the words: {text}",
    "Count the words in: {text}", "How many words does this have: {text}?", "Tell me the number of words: {text}",
    "How many words do you see: {text}?", "Number of words: {text}?", "How many words: {text}?",
    "Count these words: {text}")
COUNT_TO_OTHER_REQUESTS = (
    "And to {n}?", "Now to {n}.", "And up to {n}?", "Now count to {n}.", "Can you go to {n}?", "And {n}?",
    "What about {n}?", "Go to {n}", "Now do it to {n}.", "The same to {n}.", "And now to {n}?")
CONTINUE_COUNTING_REQUESTS = (
    "Go on", "More", "Go on counting", "Continue", "And then?", "What comes next?", "Keep counting", "Count on",
    "Next?")


def write_number_in_words(number: int) -> str:
    """Return a number from 0 to 100 in words."""
    if number < 20:
        return ONES_WORDS[number]
    tens, ones = divmod(number, 10)
    if tens == 10:
        return "one hundred"
    return f"{TENS_WORDS[tens]}-{ONES_WORDS[ones]}" if ones else TENS_WORDS[tens]


def join_numbers(numbers: range | list[int]) -> str:
    return ", ".join(map(str, numbers))


def draw_last_number(rng: Random, min_number: int = 3) -> int:
    """Return a random number, mostly up to twenty."""
    max_number = rng.choices((10, 20, 30, 50), (30, 55, 12, 3))[0]
    return rng.randint(min_number, max_number) if rng.random() < 0.85 else rng.choice((5, 10, 20))


def write_number_in_digits_or_words(rng: Random, number: int) -> str:
    return write_number_in_words(number) if rng.random() < 0.2 else str(number)


def write_two_numbers(rng: Random, a: int, b: int) -> dict[str, str]:
    """Write both numbers in digits, or both in words."""
    write = write_number_in_words if rng.random() < 0.2 else str
    return {"a": write(a), "b": write(b)}


def make_count_up(rng: Random) -> Conversation:
    n = 100 if rng.random() < 0.01 else draw_last_number(rng)
    return make_conversation(rng,
                             fill_random_template(rng, COUNT_UP_REQUESTS, n=write_number_in_digits_or_words(rng, n)),
                             f"{join_numbers(range(1, n + 1))}.")


def make_count_up_in_words(rng: Random) -> Conversation:
    n = draw_last_number(rng)
    return make_conversation(rng, fill_random_template(rng, COUNT_IN_WORDS_REQUESTS,
                                                       n=write_number_in_digits_or_words(rng, n)),
                             capitalize_first_letter(f"{', '.join(map(write_number_in_words, range(1, n + 1)))}."))


def make_count_between(rng: Random) -> Conversation:
    low = rng.choice((0, rng.randint(2, 20), rng.randint(2, 88)))
    top = low + rng.randint(2, 12)
    return make_conversation(rng, fill_random_template(rng, COUNT_BETWEEN_REQUESTS, **write_two_numbers(rng, low, top)),
                             f"{join_numbers(range(low, top + 1))}.")


def make_count_down(rng: Random) -> Conversation:
    if rng.random() < 0.5:
        top = draw_last_number(rng)
        return make_conversation(rng, fill_random_template(rng, COUNT_DOWN_TO_ONE_REQUESTS,
                                                           a=write_number_in_digits_or_words(rng, top)),
                                 f"{join_numbers(range(top, 0, -1))}.")
    low = rng.choice((0, 1, 1, rng.randint(2, 60)))
    top = low + rng.randint(3, 14)
    return make_conversation(rng, fill_random_template(rng, COUNT_DOWN_REQUESTS, **write_two_numbers(rng, top, low)),
                             f"{join_numbers(range(top, low - 1, -1))}.")


def make_count_by_steps(rng: Random) -> Conversation:
    step = choose_weighted(rng, {2: 4, 5: 3, 10: 3, 3: 1, 4: 1})
    top = step * rng.randint(3, 100 // step if step >= 5 else 12)
    return make_conversation(rng, fill_random_template(rng, COUNT_BY_STEPS_REQUESTS, step=STEP_NAMES[step], size=step,
                                                       b=top), f"{join_numbers(range(step, top + 1, step))}.")


def make_count_things(rng: Random) -> Conversation:
    n, thing = rng.randint(2, 12), rng.choice(COUNTABLE_NOUNS)
    counted = [f"1 {thing}", *(f"{number} {thing}s" for number in range(2, n + 1))]
    return make_conversation(rng, fill_random_template(rng, COUNT_THINGS_REQUESTS,
            n=write_number_in_digits_or_words(rng, n), things=f"{thing}s"),
                             f"{', '.join(counted)}.")


def make_neighbour_number_question(rng: Random) -> Conversation:
    n = rng.choice((rng.randint(1, 20), rng.randint(1, 99)))
    if rng.random() < 0.55:
        return make_conversation(rng, fill_random_template(rng, NUMBER_AFTER_QUESTIONS, n=n),
                                 f"After {n} comes {n + 1}.")
    return make_conversation(rng, fill_random_template(rng, NUMBER_BEFORE_QUESTIONS, n=n), f"Before {n} comes {n - 1}.")


def make_number_comparison(rng: Random) -> Conversation:
    low, top = sorted(rng.sample(range(rng.choice((11, 31, 100))), 2))
    a, b = rng.sample((low, top), 2)
    comparative = rng.choice(("bigger", "larger", "greater", "smaller", "smaller"))
    first, second = (low, top) if comparative == "smaller" else (top, low)
    answer = f"{first} is {comparative} than {second}."
    if rng.random() < 0.3:
        return make_conversation(rng, fill_random_template(rng, IS_BIGGER_QUESTIONS, a=a, b=b, more=comparative),
                                 f"{'Yes' if first == a else 'No'}, {answer}")
    return make_conversation(rng,
                             fill_random_template(rng, WHICH_IS_BIGGER_QUESTIONS, a=a, b=b, more=comparative), answer)


def make_number_sorting(rng: Random) -> Conversation:
    numbers = rng.sample(range(1, rng.choice((10, 20, 50))), rng.choice((3, 3, 4, 5)))
    row_text = join_numbers(numbers) if rng.random() < 0.7 else join_words(map(str, numbers))
    request_templates, backwards = (SORT_DESCENDING_REQUESTS, True) if rng.random() < 0.25 else (SORT_REQUESTS, False)
    return make_conversation(rng, fill_random_template(rng, request_templates, row=row_text),
                             f"{join_numbers(sorted(numbers, reverse=backwards))}.")


def make_sequence_continuation(rng: Random) -> Conversation:
    step, start = rng.choice((1, 1, 2, 2, 5, 10)), rng.randint(1, 12)
    start = step * rng.randint(1, 4) if step > 2 else start
    numbers = range(start, start + 4 * step, step)
    return make_conversation(rng, fill_random_template(rng, NEXT_IN_SEQUENCE_QUESTIONS, row=join_numbers(numbers)),
                             f"The next number is {start + 4 * step}.")


def make_even_or_odd_question(rng: Random) -> Conversation:
    n = rng.choice((rng.randint(0, 20), rng.randint(0, 99)))
    return make_conversation(rng, fill_random_template(rng, EVEN_OR_ODD_QUESTIONS, n=n),
                             f"{n} is {'odd' if n % 2 else 'even'}.")


def make_alphabet_recital(rng: Random) -> Conversation:
    if rng.random() < 0.4:
        return make_conversation(rng, fill_random_template(rng, ALPHABET_REQUESTS), f"{', '.join(ascii_lowercase)}.")
    start = rng.randint(0, 22)
    end = rng.randint(start + 2, min(25, start + 12))
    return make_conversation(rng, fill_random_template(rng, LETTER_RANGE_REQUESTS, a=ascii_lowercase[start],
                                                       b=ascii_lowercase[end]),
                             f"{', '.join(ascii_lowercase[start:end + 1])}.")


def make_neighbour_letter_question(rng: Random) -> Conversation:
    index = rng.randint(0, 24)
    first, second = ascii_lowercase[index], ascii_lowercase[index + 1]
    if rng.random() < 0.6:
        return make_conversation(rng, fill_random_template(rng, LETTER_AFTER_QUESTIONS, a=first),
                                 f"After {first} comes {second}.")
    return make_conversation(rng, fill_random_template(rng, LETTER_BEFORE_QUESTIONS, a=second),
                             f"Before {second} comes {first}.")


def make_word_count_question(rng: Random) -> Conversation:
    words = make_random_words(rng).split()
    counted = ", ".join(f"{number} {word}" for number, word in enumerate(words, 1))
    return make_conversation(rng, fill_random_template(rng, COUNT_WORDS_REQUESTS, text=" ".join(words)),
                             f"{counted}. There are {len(words)} words.")


def make_random_words(rng: Random) -> str:
    parts = (DETERMINERS, ("", *ADJECTIVES), SUBJECT_NOUNS, ("", *VERBS), ("", *ADVERBIALS))
    return " ".join(filter(None, map(rng.choice, parts)))


def make_two_counts(rng: Random) -> Conversation:
    """Return a talk that counts to one number and then to another."""
    first, second = rng.sample(range(3, 21), 2)
    return make_conversation(rng, fill_random_template(rng, COUNT_UP_REQUESTS, n=first),
                             f"{join_numbers(range(1, first + 1))}.",
                             fill_random_template(rng, COUNT_TO_OTHER_REQUESTS,
                                                  n=write_number_in_digits_or_words(rng, second)),
                             f"{join_numbers(range(1, second + 1))}.")


def make_continued_count(rng: Random) -> Conversation:
    n = rng.choice((3, 5, 5, 10, 10, rng.randint(3, 20)))
    return make_conversation(rng, fill_random_template(rng, COUNT_UP_REQUESTS, n=n),
                             f"{join_numbers(range(1, n + 1))}.", fill_random_template(rng, CONTINUE_COUNTING_REQUESTS),
                             f"{join_numbers(range(n + 1, n + 6))}.")


def make_counting_text(rng: Random) -> str:
    """Return plain text without a question."""
    n = draw_last_number(rng)
    numbers = join_numbers(range(1, n + 1))
    return rng.choice(
        (f"{numbers}.", f"Let us count to {n}: {numbers}.", f"The numbers from 1 to {n} are {numbers}.",
         capitalize_first_letter(f"{', '.join(map(write_number_in_words, range(1, n + 1)))}."),
         f"The letters are {', '.join(ascii_lowercase)}.",
         f"Count with me: {lowercase_first_letter(', '.join(map(write_number_in_words, range(1, n + 1))))}."))


WEIGHTED_MAKERS: dict[DocumentMaker,
                      int] = {make_count_up: 28, make_count_up_in_words: 10, make_count_between: 12,
                              make_count_down: 10, make_count_by_steps: 8, make_count_things: 3,
                              make_neighbour_number_question: 7, make_number_comparison: 6, make_number_sorting: 6,
                              make_sequence_continuation: 4, make_even_or_odd_question: 2, make_alphabet_recital: 5,
                              make_neighbour_letter_question: 4, make_word_count_question: 2, make_two_counts: 4,
                              make_continued_count: 4, make_counting_text: 4}


def make_counting_document(rng: Random) -> Conversation | str:
    return choose_weighted(rng, WEIGHTED_MAKERS)(rng)
