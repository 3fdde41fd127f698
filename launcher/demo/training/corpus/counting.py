"""Talks about sequences of numbers and letters: counting, neighbours, comparing and sorting."""

from random import Random
from string import ascii_lowercase

from launcher.demo.training.corpus.asking import chat, drawn, great, listed, put, small
from launcher.demo.training.talk import Maker, Talk

ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
COUNTED = (
    "apple", "ball", "bird", "boat", "book", "cat", "coin", "cow", "dog", "duck", "egg", "frog", "hat", "hen", "horse",
    "kite", "pear", "pig", "star", "stone", "tree")
WHOSE = ("the", "my", "your", "our", "one", "this")
LIKE = ("big", "old", "little", "good", "brave", "happy", "quiet", "kind")
WHO = ("cat", "dog", "bird", "fox", "duck", "horse", "girl", "boy", "mouse")
DOES = ("runs", "sleeps", "sings", "plays", "eats", "jumps", "waits")
WHERE = ("in the rain", "at home", "on the grass", "by the sea", "all day", "here", "with me")

UP = (
    "Count to {n}", "Count up to {n}", "Count from 1 to {n}", "Count from one to {n}", "Count until {n}",
    "Count till {n}", "Count for me up to {n}", "Start at 1 and count to {n}", "Say the numbers from 1 to {n}",
    "Give me the numbers 1 to {n}", "List the numbers from 1 to {n}", "Write the numbers from 1 to {n}",
    "Tell me the numbers up to {n}", "Name all numbers from 1 to {n}", "Show me how you count to {n}",
    "Can you count to {n}?", "How do you count to {n}?", "Do you know how to count to {n}?",
    "I want to hear you count to {n}.", "Numbers from 1 to {n}.", "Numbers 1 to {n}.",
    "What are the numbers from 1 to {n}?", "What are the first {n} numbers?", "1 to {n}.", "From 1 to {n}.")
IN_WORDS = (
    "Count to {n} in words", "Count from 1 to {n} in words", "Count to {n} with words",
    "Write the numbers from 1 to {n} as words", "Count to {n}, in words", "Say the numbers 1 to {n} in words",
    "Spell out the numbers from 1 to {n}", "Write out the numbers up to {n} in words", "Use words to count to {n}",
    "Numbers from 1 to {n} in words.", "Can you count to {n} in words?", "How do you count to {n} in words?",
    "Count up to {n} in words", "List the numbers 1 to {n} in words", "Without digits, count to {n}")
BETWEEN = (
    "Count from {a} to {b}", "Count from {a} up to {b}", "Start at {a} and count to {b}",
    "Start counting at {a} and stop at {b}", "Say the numbers from {a} to {b}", "List the numbers from {a} to {b}",
    "Give me all numbers from {a} to {b}", "Write the numbers {a} to {b}", "What are the numbers from {a} to {b}?",
    "Numbers {a} to {b}.", "Numbers from {a} to {b}.", "Can you count from {a} to {b}?",
    "How do you count from {a} to {b}?", "Begin with {a} and count up to {b}", "Count on from {a} to {b}",
    "{a} to {b}.")
DOWN = (
    "Count backwards from {a} to {b}", "Count down from {a} to {b}", "Count back from {a} to {b}",
    "Start at {a} and count down to {b}", "Say the numbers from {a} down to {b}",
    "List the numbers backwards from {a} to {b}", "Can you count backwards from {a} to {b}?",
    "Count in reverse from {a} to {b}", "Count from {a} down to {b}", "Numbers from {a} down to {b}.",
    "Give me the numbers from {a} back to {b}", "How do you count down from {a} to {b}?",
    "Write the numbers from {a} down to {b}", "Go backwards from {a} to {b}", "From {a} down to {b}.")
DOWN_TO_ONE = (
    "Count backwards from {a}", "Count down from {a}", "Count back from {a}", "Do a countdown from {a}",
    "Give me a countdown from {a}", "Start a countdown at {a}", "Can you count backwards from {a}?",
    "Countdown from {a}.")
BY = (
    "Count by {step} to {b}", "Count in {step} to {b}", "Count to {b} by {step}", "Count to {b} in {step}",
    "Count up to {b} by {step}", "Can you count by {step} to {b}?", "Count by {step} up to {b}",
    "Skip count by {step} to {b}", "Count by {step} until {b}", "Counting by {step} to {b}.",
    "Say the numbers to {b} in steps of {size}", "Count in steps of {size} to {b}", "Count to {b} in steps of {size}",
    "Go up by {step} to {b}", "How do you count by {step} to {b}?", "List the numbers to {b}, counting by {step}")
STEPS = {2: "twos", 5: "fives", 10: "tens", 3: "threes", 4: "fours"}
THINGS = (
    "Count {n} {things}", "Count to {n} with {things}", "Can you count {n} {things}?",
    "Count {n} {things} for a child", "Help me count {n} {things}", "Show me how to count {n} {things}",
    "Let us count {n} {things}.", "Count my {n} {things}")
AFTER = (
    "What comes after {n}?", "Which number comes after {n}?", "What number is after {n}?",
    "What is the next number after {n}?", "What number follows {n}?", "What follows {n}?",
    "Tell me the number after {n}", "Name the number that comes after {n}", "And what comes after {n}?",
    "After {n} comes what?", "Which number is next after {n}?", "Number after {n}?", "What is one more than {n}?",
    "Which number follows {n}?", "Give me the number after {n}")
BEFORE = (
    "What comes before {n}?", "Which number comes before {n}?", "What number is before {n}?",
    "What is the number right before {n}?", "Tell me the number before {n}", "Name the number that comes before {n}",
    "Before {n} comes what?", "Number before {n}?", "What is one less than {n}?", "Give me the number before {n}",
    "Which number is just before {n}?", "What number do I say before {n}?")
BIGGER = (
    "Which is {more}, {a} or {b}?", "What is {more}, {a} or {b}?", "Which number is {more}: {a} or {b}?",
    "Is {a} or {b} {more}?", "{a} or {b}, which is {more}?", "Which one is {more}, {a} or {b}?",
    "Tell me which is {more}, {a} or {b}", "Which of {a} and {b} is {more}?", "What number is {more}: {a} or {b}?",
    "Tell me the {more} number: {a} or {b}", "Of {a} and {b}, which is {more}?", "Choose the {more} one: {a} or {b}",
    "Find the {more} number: {a}, {b}", "Pick the {more} number: {a} or {b}", "{a} and {b}: which is {more}?")
IS_BIGGER = (
    "Is {a} {more} than {b}?", "Is it true that {a} is {more} than {b}?", "{a} is {more} than {b}, right?",
    "Would you say {a} is {more} than {b}?", "Is the number {a} {more} than {b}?")
SORT = (
    "Sort these numbers: {row}", "Sort: {row}", "Put these numbers in order: {row}", "Order these numbers: {row}",
    "Sort the numbers {row}", "Arrange these numbers: {row}", "Put {row} in order", "Sort {row}",
    "Sort from small to big: {row}", "Which order is right for {row}?", "Order the numbers {row}",
    "Arrange from smallest to biggest: {row}", "Sort this list: {row}", "Give me these numbers in order: {row}",
    "What is the right order of {row}?")
SORT_DOWN = (
    "Sort from big to small: {row}", "Sort these numbers backwards: {row}",
    "Put these numbers in order from big to small: {row}", "Order from biggest to smallest: {row}",
    "Sort {row} from big to small", "Arrange from big to small: {row}")
NEXT = (
    "What comes next: {row}?", "What is the next number: {row}?", "Go on: {row}", "Which number is next: {row}?",
    "Continue: {row}", "What number comes next in {row}?", "Find the next number: {row}", "What is next after {row}?",
    "{row}: what comes next?", "Tell me the next number: {row}")
EVEN = (
    "Is {n} even or odd?", "Is {n} odd or even?", "Is the number {n} even or odd?", "Tell me if {n} is even or odd",
    "Even or odd: {n}?", "{n}: even or odd?", "Is {n} an even number or an odd one?", "What is {n}, even or odd?")
ALPHABET = (
    "Say the alphabet", "Say the ABC", "Tell me the alphabet", "What is the alphabet?", "Write the alphabet",
    "List the letters of the alphabet", "What are the letters of the alphabet?", "Give me all letters",
    "Can you say the alphabet?", "Do you know the alphabet?", "Name all letters from a to z", "Say your ABC",
    "Recite the alphabet", "Show me the alphabet", "The alphabet.", "All letters from a to z.")
LETTERS = (
    "Say the letters from {a} to {b}", "List the letters from {a} to {b}", "Letters from {a} to {b}.",
    "Give me the letters {a} to {b}", "What are the letters from {a} to {b}?", "Write the letters from {a} to {b}",
    "Name the letters from {a} to {b}", "Say the alphabet from {a} to {b}", "Which letters go from {a} to {b}?",
    "The alphabet from {a} to {b}.")
LETTER_AFTER = (
    "What letter comes after {a}?", "Which letter comes after {a}?", "What is the letter after {a}?",
    "Which letter follows {a}?", "What is the next letter after {a}?", "Tell me the letter after {a}",
    "What comes after the letter {a}?", "Name the letter that follows {a}", "After {a} comes which letter?",
    "Letter after {a}?")
LETTER_BEFORE = (
    "What letter comes before {a}?", "Which letter comes before {a}?", "What is the letter before {a}?",
    "Tell me the letter before {a}", "What comes before the letter {a}?", "Name the letter before {a}",
    "Letter before {a}?")
HOW_MANY = (
    "How many words are in this: {text}?", "How many words are here: {text}?", "Count the words: {text}",
    "Count the words in: {text}", "How many words does this have: {text}?", "Tell me the number of words: {text}",
    "How many words do you see: {text}?", "Number of words: {text}?", "How many words: {text}?",
    "Count these words: {text}")
AND_TO = (
    "And to {n}?", "Now to {n}.", "And up to {n}?", "Now count to {n}.", "Can you go to {n}?", "And {n}?",
    "What about {n}?", "Go to {n}", "Now do it to {n}.", "The same to {n}.", "And now to {n}?")
GO_ON = (
    "Go on", "More", "Go on counting", "Continue", "And then?", "What comes next?", "Keep counting", "Count on",
    "Next?")


def in_words(number: int) -> str:
    """Return a number from 0 to 100 in words."""
    if number < 20:
        return ONES[number]
    tens, ones = divmod(number, 10)
    if tens == 10:
        return "one hundred"
    return f"{TENS[tens]}-{ONES[ones]}" if ones else TENS[tens]


def row(numbers: range | list[int]) -> str:
    return ", ".join(map(str, numbers))


def high(rng: Random, least: int = 3) -> int:
    """Return a random number, mostly up to twenty."""
    most = rng.choices((10, 20, 30, 50), (30, 55, 12, 3))[0]
    return rng.randint(least, most) if rng.random() < 0.85 else rng.choice((5, 10, 20))


def written(rng: Random, number: int) -> str:
    return in_words(number) if rng.random() < 0.2 else str(number)


def ends(rng: Random, a: int, b: int) -> dict[str, str]:
    """Write both numbers in digits, or both in words."""
    write = in_words if rng.random() < 0.2 else str
    return {"a": write(a), "b": write(b)}


def up(rng: Random) -> Talk:
    n = 100 if rng.random() < 0.01 else high(rng)
    return chat(rng, put(rng, UP, n=written(rng, n)), f"{row(range(1, n + 1))}.")


def up_in_words(rng: Random) -> Talk:
    n = high(rng)
    return chat(rng, put(rng, IN_WORDS, n=written(rng, n)), great(f"{', '.join(map(in_words, range(1, n + 1)))}."))


def between(rng: Random) -> Talk:
    low = rng.choice((0, rng.randint(2, 20), rng.randint(2, 88)))
    top = low + rng.randint(2, 12)
    return chat(rng, put(rng, BETWEEN, **ends(rng, low, top)), f"{row(range(low, top + 1))}.")


def down(rng: Random) -> Talk:
    if rng.random() < 0.5:
        top = high(rng)
        return chat(rng, put(rng, DOWN_TO_ONE, a=written(rng, top)), f"{row(range(top, 0, -1))}.")
    low = rng.choice((0, 1, 1, rng.randint(2, 60)))
    top = low + rng.randint(3, 14)
    return chat(rng, put(rng, DOWN, **ends(rng, top, low)), f"{row(range(top, low - 1, -1))}.")


def by_steps(rng: Random) -> Talk:
    step = drawn(rng, {2: 4, 5: 3, 10: 3, 3: 1, 4: 1})
    top = step * rng.randint(3, 100 // step if step >= 5 else 12)
    return chat(rng, put(rng, BY, step=STEPS[step], size=step, b=top), f"{row(range(step, top + 1, step))}.")


def with_things(rng: Random) -> Talk:
    n, thing = rng.randint(2, 12), rng.choice(COUNTED)
    counted = [f"1 {thing}", *(f"{number} {thing}s" for number in range(2, n + 1))]
    return chat(rng, put(rng, THINGS, n=written(rng, n), things=f"{thing}s"), f"{', '.join(counted)}.")


def neighbour(rng: Random) -> Talk:
    n = rng.choice((rng.randint(1, 20), rng.randint(1, 99)))
    if rng.random() < 0.55:
        return chat(rng, put(rng, AFTER, n=n), f"After {n} comes {n + 1}.")
    return chat(rng, put(rng, BEFORE, n=n), f"Before {n} comes {n - 1}.")


def compared(rng: Random) -> Talk:
    low, top = sorted(rng.sample(range(rng.choice((11, 31, 100))), 2))
    a, b = rng.sample((low, top), 2)
    more = rng.choice(("bigger", "larger", "greater", "smaller", "smaller"))
    first, second = (low, top) if more == "smaller" else (top, low)
    answer = f"{first} is {more} than {second}."
    if rng.random() < 0.3:
        return chat(rng, put(rng, IS_BIGGER, a=a, b=b, more=more), f"{'Yes' if first == a else 'No'}, {answer}")
    return chat(rng, put(rng, BIGGER, a=a, b=b, more=more), answer)


def in_order(rng: Random) -> Talk:
    numbers = rng.sample(range(1, rng.choice((10, 20, 50))), rng.choice((3, 3, 4, 5)))
    said = row(numbers) if rng.random() < 0.7 else listed(map(str, numbers))
    ways, backwards = (SORT_DOWN, True) if rng.random() < 0.25 else (SORT, False)
    return chat(rng, put(rng, ways, row=said), f"{row(sorted(numbers, reverse=backwards))}.")


def continued(rng: Random) -> Talk:
    step, start = rng.choice((1, 1, 2, 2, 5, 10)), rng.randint(1, 12)
    start = step * rng.randint(1, 4) if step > 2 else start
    numbers = range(start, start + 4 * step, step)
    return chat(rng, put(rng, NEXT, row=row(numbers)), f"The next number is {start + 4 * step}.")


def even_or_odd(rng: Random) -> Talk:
    n = rng.choice((rng.randint(0, 20), rng.randint(0, 99)))
    return chat(rng, put(rng, EVEN, n=n), f"{n} is {'odd' if n % 2 else 'even'}.")


def letters(rng: Random) -> Talk:
    if rng.random() < 0.4:
        return chat(rng, put(rng, ALPHABET), f"{', '.join(ascii_lowercase)}.")
    start = rng.randint(0, 22)
    end = rng.randint(start + 2, min(25, start + 12))
    return chat(rng, put(rng, LETTERS, a=ascii_lowercase[start], b=ascii_lowercase[end]),
                f"{', '.join(ascii_lowercase[start:end + 1])}.")


def next_letter(rng: Random) -> Talk:
    place = rng.randint(0, 24)
    first, second = ascii_lowercase[place], ascii_lowercase[place + 1]
    if rng.random() < 0.6:
        return chat(rng, put(rng, LETTER_AFTER, a=first), f"After {first} comes {second}.")
    return chat(rng, put(rng, LETTER_BEFORE, a=second), f"Before {second} comes {first}.")


def how_many_words(rng: Random) -> Talk:
    words = some_words(rng).split()
    counted = ", ".join(f"{number} {word}" for number, word in enumerate(words, 1))
    return chat(rng, put(rng, HOW_MANY, text=" ".join(words)), f"{counted}. There are {len(words)} words.")


def some_words(rng: Random) -> str:
    parts = (WHOSE, ("", *LIKE), WHO, ("", *DOES), ("", *WHERE))
    return " ".join(filter(None, map(rng.choice, parts)))


def again(rng: Random) -> Talk:
    """Return a talk that counts to one number and then to another."""
    first, second = rng.sample(range(3, 21), 2)
    return chat(rng, put(rng, UP, n=first), f"{row(range(1, first + 1))}.",
                put(rng, AND_TO, n=written(rng, second)), f"{row(range(1, second + 1))}.")


def further(rng: Random) -> Talk:
    n = rng.choice((3, 5, 5, 10, 10, rng.randint(3, 20)))
    return chat(rng, put(rng, UP, n=n), f"{row(range(1, n + 1))}.", put(rng, GO_ON), f"{row(range(n + 1, n + 6))}.")


def plain(rng: Random) -> str:
    """Return plain text without a question."""
    n = high(rng)
    numbers = row(range(1, n + 1))
    return rng.choice((
        f"{numbers}.", f"Let us count to {n}: {numbers}.", f"The numbers from 1 to {n} are {numbers}.",
        great(f"{', '.join(map(in_words, range(1, n + 1)))}."), f"The letters are {', '.join(ascii_lowercase)}.",
        f"Count with me: {small(', '.join(map(in_words, range(1, n + 1))))}."))


MAKERS: dict[Maker, int] = {
    up: 28, up_in_words: 10, between: 12, down: 10, by_steps: 8, with_things: 3, neighbour: 7, compared: 6, in_order: 6,
    continued: 4, even_or_odd: 2, letters: 5, next_letter: 4, how_many_words: 2, again: 4, further: 4, plain: 4}


def counting(rng: Random) -> Talk | str:
    return drawn(rng, MAKERS)(rng)
