"""Tools that do something, with the requests for them."""

from launcher.demo.training.corpus.tool_calling.tool_scenario import ToolScenario

CHORE_TOOLS = (
    ToolScenario("set_timer", "Set a timer", "minutes:minutes", (
        "Set a timer for {minutes} minutes", "Start a timer for {minutes} minutes", "Timer for {minutes} minutes.",
        "Set the timer to {minutes} minutes", "Wake me in {minutes} minutes", "Tell me when {minutes} minutes are over",
        "I need a timer for {minutes} minutes.", "Put {minutes} minutes on the timer", "Give me {minutes} minutes"),
                 ("The timer is set for {minutes} minutes.",),
                 vague_requests=("Set a timer", "Start the timer", "I need a timer."),
                 missing_value_question="For how many minutes?"),
    ToolScenario("set_alarm", "Set the alarm clock", "time:clock day:day?", (
        "Set an alarm for {time}", "Wake me up at {time}", "Set the alarm to {time}", "Wake me at {time} on {day}",
        "Set an alarm for {time} on {day}", "I must get up at {time} on {day}.", "Alarm at {time}.",
        "I want to get up at {time}."),
                 ("The alarm is set for {time} on {day}.", "The alarm is set for {time}."),
                 vague_requests=("Set an alarm", "Wake me up"),
                 missing_value_question="At what time?"),
    ToolScenario("send_message", "Send a message to a person", "to:name text:message", (
        "Send a message to {to}: {text}", 'Send "{text}" to {to}', "Write to {to}: {text}", 'Tell {to}: "{text}"',
        "Message {to}: {text}", "Send {to} a message: {text}", 'Write "{text}" to {to}',
        'Send {to} the message "{text}"', "Text {to}: {text}", "Send this to {to}: {text}"),
                 ("I sent the message to {to}.",),
                 vague_requests=("Send a message to {to}", "Write to {to}", "I want to write to {to}."),
                 missing_value_question="What should the message say?"),
    ToolScenario("play_song", "Play a song", "title:title", (
        "Play {title}", "Play the song {title}", "I want to hear {title}.", "Put on {title}", "Play me {title}",
        "Start the song {title}", "Let me hear {title}", "Can we listen to {title}?"),
                 ("Now playing {title}.",), vague_requests=("Play a song", "Play some music"),
                 missing_value_question="Which song do you want to hear?"),
    ToolScenario("book_table", "Book a table", "restaurant:title people:dozen time:clock", (
        "Book a table at {restaurant} for {people} people at {time}",
        "Book a table for {people} at {restaurant} at {time}",
        "I need a table for {people} people at {restaurant} at {time}.",
        "Get us a table at {restaurant} at {time} for {people}", "Table for {people} at {time} at {restaurant}.",
        "We are {people} people and want to eat at {restaurant} at {time}.",
        "Get a table for {people} people at {time} at {restaurant}"),
                 ("The table at {restaurant} is booked for {time}.",),
                 vague_requests=("Book a table at {restaurant} at {time}",),
                 missing_value_question="For how many people?"),
    ToolScenario("set_light", "Turn a light on or off", "room:room on:yes", (
        "Turn on the light in the {room} #on=true", "Turn off the light in the {room} #on=false",
        "Light on in the {room}. #on=true", "Turn the {room} light on #on=true", "Turn the {room} light off #on=false",
        "It is dark in the {room}. #on=true", "Switch on the light in the {room} #on=true",
        "Switch off the light in the {room} #on=false", "I need light in the {room}. #on=true",
        "Light off in the {room}. #on=false"),
                 ("The light in the {room} is on. #on=true", "The light in the {room} is off. #on=false"),
                 vague_requests=("Turn on the light", "Turn off the light"), missing_value_question="In which room?"),
    ToolScenario("set_heat", "Set how warm a room is", "room:room degrees:warmth", (
        "Set the {room} to {degrees} degrees", "Make the {room} {degrees} degrees warm",
        "Heat the {room} to {degrees} degrees", "I want {degrees} degrees in the {room}.",
        "It should be {degrees} degrees in the {room}."),
                 ("The {room} is set to {degrees} degrees.",), vague_requests=("Heat the {room}",),
                 missing_value_question="To how many degrees?"),
    ToolScenario("add_to_list", "Add items to the shopping list", "items:foods", (
        "Put {items} on the shopping list", "Add {items} to the shopping list", "Add {items} to my list",
        "We need {items}.", "I have to buy {items}.", "Write {items} on the list", "Put {items} on the list"),
                 ("I put {items} on the list.",), vague_requests=("Add something to my list", "Put it on the list"),
                 missing_value_question="What should I put on the list?"),
    ToolScenario("invite", "Invite people", "names:names day:day", (
        "Invite {names} on {day}", "Ask {names} to come on {day}", "Invite {names} for {day}",
        "{names} should come on {day}.", "Send an invitation for {day} to {names}"),
                 ("I invited {names} for {day}.",), vague_requests=("Invite {names}",),
                 missing_value_question="On which day?"),
    ToolScenario("add_reminder", "Add a reminder", "text:chore day:day?", (
        "Remind me to {text}", "Remind me to {text} on {day}", "Do not let me forget to {text}.",
        "I must not forget to {text}.", "On {day} I have to {text}. Remind me.", "Add a reminder to {text}",
        "I have to {text} on {day}, remind me."),
                 ("I will remind you to {text} on {day}.", "I will remind you to {text}."),
                 vague_requests=("Remind me",
                                 "Add a reminder"), missing_value_question="What should I remind you of?"),
    ToolScenario("call_person", "Call a person on the phone", "name:name", (
        "Call {name}", "Phone {name}", "Ring {name}", "I want to talk to {name}.", "Give {name} a call",
        "Start a call with {name}"),
                 ("I am calling {name}.",), vague_requests=("Call somebody", "I want to call somebody."),
                 missing_value_question="Whom should I call?"),
    ToolScenario("order_food", "Order food", "dish:dish count:dozen size:size?", (
        "Order {count} times {dish}", "I want {count} times {dish}.", "Order {dish} for {count}",
        "Get {dish} for {count} people", "Order {size} {dish} for {count} people", "We want {dish} for {count}.",
        "Bring {size} {dish} for {count}"),
                 ("I ordered {dish} for {count}.",), vague_requests=("Order {dish}", "I want to order {dish}."),
                 missing_value_question="For how many people?"),
    ToolScenario("lock_door", "Lock or open a door", "door:room locked:yes", (
        "Lock the {door} door #locked=true", "Open the {door} door #locked=false",
        "Lock the door of the {door} #locked=true", "Unlock the {door} door #locked=false",
        "The {door} door should be locked. #locked=true"),
                 ("The {door} door is locked. #locked=true", "The {door} door is open. #locked=false")),
    ToolScenario("paint_wall", "Paint the walls of a room", "room:room colour:colour", (
        "Paint the {room} {colour}", "Paint the walls of the {room} {colour}", "I want a {colour} {room}.",
        "Make the {room} {colour}", "The {room} should be {colour}."),
                 ("The {room} is {colour} now.",), vague_requests=("Paint the {room}",),
                 missing_value_question="In which colour?"),
    ToolScenario("feed_pet", "Feed a pet", "pet:animal time:clock?", (
        "Feed the {pet}", "Feed my {pet} at {time}", "Give the {pet} some food", "The {pet} is hungry.",
        "Feed the {pet} at {time}"),
                 ("The {pet} gets food at {time}.", "The {pet} has got some food.")),
    ToolScenario("move_robot", "Move the robot", "way:way steps:dozen", (
        "Move the robot {steps} steps {way}", "Go {steps} steps {way}", "Walk {way} for {steps} steps",
        "Robot, {steps} steps {way}.", "Send the robot {steps} steps {way}", "Go {way} {steps} steps"),
                 ("The robot went {steps} steps {way}.",), vague_requests=("Move the robot {way}",),
                 missing_value_question="How many steps?"),
    ToolScenario("buy_ticket", "Buy tickets for a film", "film:title count:dozen day:day?", (
        "Buy {count} tickets for {film}", "I want {count} tickets for {film}.",
        "Get {count} tickets for {film} on {day}", "Buy {count} tickets for the film {film} on {day}",
        "We want to see {film} on {day}. We are {count}.", "{count} tickets for {film}."),
                 ("I bought {count} tickets for {film}.",),
                 vague_requests=("Buy tickets for {film}", "I want to see {film}."),
                 missing_value_question="How many tickets do you want?"),
    ToolScenario("rent_bike", "Rent a bike", "city:city days:dozen", (
        "Rent a bike in {city} for {days} days", "I need a bike in {city} for {days} days.",
        "Get me a bike for {days} days in {city}", "Bike in {city} for {days} days.",
        "For {days} days I want a bike in {city}."),
                 ("You have a bike in {city} for {days} days.",), vague_requests=("Rent a bike in {city}",),
                 missing_value_question="For how many days?"),
    ToolScenario("make_coffee", "Make coffee", "size:size milk:yes?", (
        "Make a {size} coffee", "I want a {size} coffee.", "A {size} coffee with milk. #milk=true",
        "Make me a {size} coffee without milk #milk=false", "A {size} coffee.",
        "Make a {size} coffee with milk #milk=true"),
                 ("Your {size} coffee is ready.",), vague_requests=("Make coffee", "I want a coffee."),
                 missing_value_question="Small, medium or large?"),
    ToolScenario("write_note", "Write a note", "title:word text:message", (
        "Write a note {title}: {text}", "Make a note with the title {title}: {text}",
        'Save the note {title} with "{text}"', "New note {title}: {text}"),
                 ("I wrote the note {title}.",)),
    ToolScenario("add_event", "Put an event on the calendar", "title:word day:day time:clock?", (
        "Put {title} on {day} at {time} in my calendar", "Add {title} to the calendar for {day}",
        "Plan {title} on {day} at {time}", "I have {title} on {day} at {time}.", "Calendar: {title} on {day} at {time}",
        "Plan {title} for {day}"),
                 ("{title} is on {day} at {time}.", "{title} is on {day}."),
                 vague_requests=("Put {title} in my calendar",),
                 missing_value_question="On which day?"),
    ToolScenario("set_volume", "Set how loud it is", "level:number", (
        "Set the volume to {level}", "Volume {level}.", "Turn the volume to {level}", "Make it {level} loud",
        "I want the volume at {level}."),
                 ("The volume is {level}.",), vague_requests=("Change the volume", "Set the volume"),
                 missing_value_question="To which level?"),
    ToolScenario("draw_shape", "Draw a shape", "shape:shape colour:colour size:size?", (
        "Draw a {colour} {shape}", "Draw a {size} {colour} {shape}", "I want a {colour} {shape}.",
        "Make a {colour} {shape}", "Draw a {shape} in {colour}", "Show me a {size} {shape} in {colour}"),
                 ("Here is a {colour} {shape}.",), vague_requests=("Draw a {shape}",),
                 missing_value_question="In which colour?"),
    ToolScenario("save_contact", "Save a contact", "name:name phone:hundreds", (
        "Save the number {phone} for {name}", "{name} has the number {phone}. Save it.",
        "Save {name} with the number {phone}", "New contact: {name}, {phone}", "Keep the number {phone} of {name}"),
                 ("I saved the number of {name}.",), vague_requests=("Save the number of {name}",),
                 missing_value_question="What is the number?"),
    ToolScenario("start_game", "Start a game", "game:word players:few", (
        "Start {game} with {players} players", "We want to play {game}. We are {players}.",
        "Play {game} with {players} players", "Start the game {game} for {players} players",
        "Let us play {game} with {players} players."),
                 ("The game {game} begins with {players} players.",), vague_requests=("Start the game {game}",),
                 missing_value_question="How many players are there?"),
    ToolScenario("delete_file", "Delete a file", "file:word", (
        "Delete the file {file}", "Delete {file}", "Remove the file {file}", "Throw away the file {file}",
        "I do not need the file {file}."),
                 ("The file {file} is gone.",), vague_requests=("Delete a file", "Delete the file"),
                 missing_value_question="Which file?"),
    ToolScenario("rename_file", "Give a file a new name", "old:word new:word", (
        "Rename {old} to {new}", "Rename the file {old} to {new}", "Change the name of {old} to {new}",
        "Call the file {old} now {new}", "The file {old} should be called {new}."),
                 ("The file {old} is now called {new}.",), vague_requests=("Rename the file {old}",),
                 missing_value_question="What is the new name?"),
    ToolScenario("call_taxi", "Call a taxi", "place:title time:clock", (
        "Get a taxi to {place} at {time}", "Call a taxi at {time} to {place}", "I need a taxi to {place} at {time}.",
        "Taxi to {place} at {time}."),
                 ("A taxi to {place} comes at {time}.",),
                 vague_requests=("Call a taxi to {place}", "I need a taxi to {place}."),
                 missing_value_question="At what time?"),
    ToolScenario("send_parcel", "Send a parcel", "to:name city:city weight:dozen?", (
        "Send a parcel to {to} in {city}", "I want to send a parcel to {to} in {city}.", "Parcel for {to} in {city}.",
        "Send {to} in {city} a parcel of {weight} pounds", "Bring a parcel of {weight} pounds to {to} in {city}"),
                 ("The parcel to {to} is on its way.",), vague_requests=("Send a parcel to {to}",),
                 missing_value_question="To which city?"),)
