"""Tools that look something up, with the requests for them."""

from launcher.demo.training.corpus.tool_calling.tool_scenario import ToolScenario

LOOKUP_TOOLS = (
    ToolScenario("get_weather", "Get the weather of a city", "city:city unit:unit?", (
        "What is the weather in {city}?", "How is the weather in {city}?", "What is the weather like in {city}?",
        "Tell me the weather in {city}", "Is it warm in {city}?", "Will it rain in {city}?", "Weather in {city}?",
        "Show me the weather in {city}", "What's the weather in {city}?", "How warm is it in {city} today?",
        "Is it cold in {city} now?", "I am going to {city}. How is the weather there?", "Check the weather in {city}",
        "What is the weather in {city} in {unit}?", "How warm is it in {city} in {unit}?",
        "Get the weather of {city} in {unit}"),
                 ("It is {degrees} degrees and {sky} in {city}.",), "degrees:degrees sky:sky",
                 vague_requests=("What is the weather?",
                                 "How is the weather?", "Tell me the weather", "Will it rain?", "Is it cold outside?"),
                 missing_value_question="For which city do you want the weather?"),
    ToolScenario("get_time", "Get the time in a city", "city:city", (
        "What time is it in {city}?", "Tell me the time in {city}", "What is the time in {city}?",
        "How late is it in {city}?", "Time in {city}?", "Is it late in {city}?", "Which time is it now in {city}?",
        "Get the time in {city}"),
                 ("It is {time} in {city}.",), "time:clock"),
    ToolScenario("count_people", "Count the people of a city", "city:city", (
        "How many people live in {city}?", "How big is {city}?", "Tell me how many people live in {city}",
        "What is the population of {city}?", "People in {city}?", "Count the people in {city}"),
                 ("There are {people} people in {city}.",), "people:hundreds"),
    ToolScenario("search", "Search the web", "query:topic", (
        "Search for {query}", "Search the web for {query}", "Look up {query}", "Find something about {query}",
        "Search {query}", "Find pages about {query}", "I want to read about {query}.",
        "What does the web say about {query}?", "Google {query}", "Look for {query} on the web",
        "Do a search for {query}"),
                 ("I found {count} pages about {query}.",), "count:number",
                 vague_requests=("Search the web", "Look something up",
                                 "Do a search"), missing_value_question="What do you want me to search for?"),
    ToolScenario("translate", "Translate a word", "word:plain language:language", (
        "Translate {word} to {language}", "Translate {word} into {language}", "What is {word} in {language}?",
        "How do you say {word} in {language}?", "Say {word} in {language}", "Tell me the {language} word for {word}",
        "What is the {language} word for {word}?", "What is {word} called in {language}?",
        "Put {word} into {language}"),
                 ("The {language} word for {word} is {result}.",), "result:word",
                 vague_requests=("Translate a word",
                                 "Translate this to {language}"),
                 missing_value_question="Which word do you want me to translate?"),
    ToolScenario("get_price", "Get the price of a thing", "item:thing money:money?", (
        "What does a {item} cost?", "How much is a {item}?", "What is the price of a {item}?",
        "Tell me the price of a {item}", "Price of a {item}?", "How much does a {item} cost in {money}?",
        "What is the price of a {item} in {money}?", "What must I pay for a {item}?",
        "How much money do I need for a {item}?"),
                 ("The {item} costs {price} {money}.", "The {item} costs {price}."), "price:price"),
    ToolScenario("find_recipe", "Find a recipe", "dish:dish people:dozen?", (
        "How do I make {dish}?", "Find a recipe for {dish}", "I want to cook {dish}.", "Give me a recipe for {dish}",
        "Recipe for {dish}?", "Find a recipe for {dish} for {people} people",
        "I want to make {dish} for {people} people.", "How is {dish} made?"),
                 ("I found a recipe for {dish}. It takes {minutes} minutes.",), "minutes:minutes"),
    ToolScenario("get_score", "Get the score of a team", "team:title", (
        "How did {team} play?", "What is the score of {team}?", "Tell me the score of {team}", "Did {team} win?",
        "How many points does {team} have?", "Score of {team}?", "Get the score for {team}"),
                 ("{team} has {points} points.",), "points:number"),
    ToolScenario("find_book", "Find a book in the library", "title:title", (
        "Where is the book {title}?", "Find the book {title}", "Do you have the book {title}?",
        "I want to read {title}.", "Is {title} in the library?", "Look for the book {title}",
        "On which shelf is {title}?"),
                 ("{title} is on shelf {shelf}.",), "shelf:number",
                 vague_requests=("Find a book", "I want to read a book."),
                 missing_value_question="What is the title of the book?"),
    ToolScenario("check_stock", "Check how many things are left", "item:thing", (
        "How many pieces of {item} are left?", "Check the stock of {item}", "Do we have a {item} in stock?",
        "Is there a {item} left?", "Is the {item} in stock?", "Stock of {item}?"),
                 ("There are {count} left.",), "count:number"),
    ToolScenario("convert_money", "Change money", "amount:number to:money", (
        "How much is {amount} in {to}?", "Change {amount} to {to}", "Convert {amount} to {to}",
        "What is {amount} in {to}?", "I need {amount} in {to}.", "Turn {amount} into {to}"),
                 ("That is {result} {to}.",), "result:number"),
    ToolScenario("find_train", "Find a train", "start:city end:city day:day?", (
        "Find a train from {start} to {end}", "When does a train go from {start} to {end}?",
        "Is there a train from {start} to {end}?", "I want to go from {start} to {end} by train.",
        "Train from {start} to {end}?", "Train from {start} to {end} on {day}?",
        "Find a train to {end} from {start} on {day}", "I need a train from {start} to {end} on {day}."),
                 ("There is a train from {start} to {end} at {time}.",), "time:clock",
                 vague_requests=("Find a train to {end}",
                                 "I need a train to {end}.", "When is the next train to {end}?"),
                 missing_value_question="From which city do you want to go?"),
    ToolScenario("get_distance", "Get the distance of two cities", "a:city b:city", (
        "How far is it from {a} to {b}?", "What is the distance from {a} to {b}?", "How far is {b} from {a}?",
        "Tell me how far it is from {a} to {b}", "How many miles from {a} to {b}?", "Distance from {a} to {b}?"),
                 ("It is {miles} miles from {a} to {b}.",), "miles:hundreds"),
    ToolScenario("get_news", "Get news about a topic", "topic:topic", (
        "What is the news about {topic}?", "Give me news about {topic}", "Is there news about {topic}?",
        "News on {topic}?", "Tell me the news about {topic}", "What is new about {topic}?"),
                 ("I found {count} stories about {topic}.",), "count:few"),
    ToolScenario("find_phone", "Find a phone number", "name:name", (
        "What is the phone number of {name}?", "Find the number of {name}", "Tell me the phone number of {name}",
        "How can I call {name}?", "Phone number of {name}?", "I need the number of {name}."),
                 ("The number of {name} is {phone}.",), "phone:hundreds",
                 vague_requests=("Find a phone number",
                                 "I need a phone number."), missing_value_question="Whose number do you need?"),
    ToolScenario("get_birthday", "Get the birthday of a person", "name:name", (
        "When is the birthday of {name}?", "When was {name} born?", "What is the birthday of {name}?",
        "Birthday of {name}?", "Tell me the birthday of {name}", "In which month is {name} born?"),
                 ("{name} was born in {month}.",), "month:month"),
    ToolScenario("track_parcel", "Find out where a parcel is", "code:code", (
        "Where is the parcel {code}?", "Track the parcel {code}", "Find my parcel {code}",
        "Where is my parcel? It is {code}.", "Is parcel {code} here?", "Track {code}",
        "The parcel {code} is late. Where is it?"),
                 ("The parcel {code} is in {city}.",), "city:city",
                 vague_requests=("Where is my parcel?", "Track my parcel",
                                 "Find my parcel"), missing_value_question="What is the code of the parcel?"),
    ToolScenario("is_open", "See whether a shop is open", "shop:title day:day?", (
        "Is {shop} open?", "Is the shop {shop} open on {day}?", "Can I go to {shop} on {day}?",
        "Find out if {shop} is open", "Does {shop} open on {day}?", "Tell me if {shop} is open on {day}"),
                 ("Yes, {shop} is open. #open=true", "No, {shop} is closed. #open=false"), "open:yes"),
    ToolScenario("add", "Add two numbers", "a:number b:number", (
        "Add {a} and {b}", "What is {a} plus {b}?", "What is {a} + {b}?", "{a} plus {b}?", "How much is {a} and {b}?",
        "Use the tool to add {a} and {b}", "Sum of {a} and {b}?"),
                 ("{a} plus {b} is {result}.",), compute_result=lambda v: {"result": v["a"] + v["b"]}),
    ToolScenario("multiply", "Multiply two numbers", "a:number b:number", (
        "Multiply {a} by {b}", "What is {a} times {b}?", "What is {a} * {b}?", "{a} times {b}?",
        "How much is {a} times {b}?", "Multiply {a} and {b}", "Use the tool for {a} times {b}."),
                 ("{a} times {b} is {result}.",), compute_result=lambda v: {"result": v["a"] * v["b"]}),
    ToolScenario("roll_dice", "Roll dice", "count:few", (
        "Roll {count} dice", "Throw {count} dice", "Let us roll {count} dice.", "Roll the dice {count} times",
        "I want to roll {count} dice."),
                 ("The dice show {result}.",), "result:few", vague_requests=("Roll the dice", "Throw some dice"),
                 missing_value_question="How many dice do you want?"),
    ToolScenario("read_mail", "Read mail from a person", "sender:name", (
        "Read the mail from {sender}", "Did {sender} write to me?", "What does {sender} write?",
        "Is there mail from {sender}?", "Show me the mail of {sender}", "Any mail from {sender}?"),
                 ('{sender} writes: "{text}".',), "text:message"),
    ToolScenario("find_song", "Find songs by a singer", "singer:name mood:mood?", (
        "Find songs by {singer}", "Which songs are by {singer}?", "Find {mood} songs by {singer}",
        "Are there songs by {singer}?", "What does {singer} sing?", "Show me {mood} songs by {singer}"),
                 ("I found the song {title} by {singer}.",), "title:title"),
    ToolScenario("get_homework", "Get the homework for a subject", "subject:subject day:day?", (
        "What is the homework in {subject}?", "Do I have homework in {subject}?", "Tell me the homework for {subject}",
        "Homework in {subject} for {day}?", "What must I do for {subject} on {day}?",
        "Is there homework in {subject}?"),
                 ("Read page {page} for {subject}.",), "page:number",
                 vague_requests=("What is my homework?", "Do I have homework?"),
                 missing_value_question="In which subject?"),)
