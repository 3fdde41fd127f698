"""Plots of stories: each is a sequence of sentence templates that is coherent for all random choices.

Slots: hero (with a trait), kind, name, friend (a_friend at the first mention), thing, place and the pronouns he, him
and his; a slot in capitals begins a sentence. The choices of an optional sentence end with an empty one.
"""

Plot = tuple[str, ...]

STORY_OPENINGS = (
    "Once upon a time, there was {a_hero} named {name} who lived {place}.",
    "Once upon a time, {a_hero} named {name} lived {place}.",
    "Once there was {a_hero} called {name} who lived {place}.",
    "[Long ago|A long time ago], {a_hero} named {name} lived {place}.",
    "{name} was {a_hero} who lived {place}.",
    "{PLACE}, there lived {a_hero} named {name}.",
    "There was once {a_hero}, and {his} name was {name}, and {he} lived {place}.",
)
BEDTIME_ENDINGS = (
    "That night, {name} [closed {his} eyes|lay down|yawned] and fell asleep[| with a smile| at once| under the stars].",
    "Then {name} went to bed and dreamed of {his} {thing}.",
    "When the moon came up, {name} was warm and happy and fast asleep.",
    "Then {he} said good night to the [moon|stars] and slept until morning.",
)

LOST_PLOT = (
    "One [day|morning|evening|windy day|rainy day], {name} lost {his} {thing}.",
    "{HE} looked [under the bed|behind the trees|in the tall grass|everywhere], but [it was not there|{he} could "
    "not find it].",
    "[{HE} sat down and cried.||]",
    "Then {a_friend} came [by |along |]and said, \"[Do not cry, I will help you.|Let us look together.|Two can see "
    "more than one.]\"",
    "[Soon|At last|Together] they found the {thing} [behind a big stone|under a leaf|under an old log|in a bush].",
    "[{name} was so happy that {he} hugged {friend}.|{name} thanked {friend}, and they were friends from that day on.|"
    "From then on, {name} took good care of the {thing}.|{HE} laughed and danced, and {friend} danced too.]",
)
WISH_PLOT = (
    "{HE} wanted {a_thing} more than anything [in the world|else].",
    "But {he} had no money, and nobody would give {him} one.",
    "[One day|One morning|On the way home], {name} saw {a_friend}, who was [hurt|very hungry|stuck in the mud|lost "
    "and cold].",
    "{name} [stopped and helped|helped at once|was kind and helped], and {friend} said, \"[Thank you, you are so "
    "kind!|You are a true friend.]\"",
    "The next day, {friend} came back and gave {him} {a_thing}.",
    "[{name} learned that kindness comes back.|{name} jumped for joy.|It was the best day of {his} life.|"
    "{HE} kept it for ever, and {he} kept {his} friend too.]",
)
FEAR_PLOT = (
    "{name} was afraid of [the dark|the wind|thunder|deep water|loud noises].",
    "One night, {his} {thing} [was left outside|rolled down the hill|fell out of the window], and {he} had to go "
    "and get it.",
    "[{HIS} knees were shaking.|{HIS} heart beat fast.||]",
    "But {a_friend} [said|whispered], \"[Hold my hand and take one step.|I will go with you.|Do not be afraid, I am "
    "here.]\"",
    "Step by step they went, and {name} came home with the {thing}.",
    "[After that, {name} was not afraid any more.|{HE} felt very brave.|{name} learned that friends make us brave.|"
    "Now {he} could sleep well.]",
)
SHARING_PLOT = (
    "{HE} had {a_thing} and loved it very much.",
    "One day, {he} met {a_friend}, who had nothing to play with and looked sad.",
    "[At first, {name} did not want to share.|{name} thought about it for a while.||]",
    "Then {he} said, \"[We can share my {thing}!|Come and play with me!|What is mine is yours.]\"",
    "They played [all day|until the sun went down|and laughed all afternoon].",
    "[{name} learned that sharing is fun.|From that day on, they were best friends.|It was much more fun than "
    "playing alone.|"
    "And {name} never felt lonely again.]",
)
RESCUE_PLOT = (
    "One day, {he} heard a [small|sad|loud] voice that called, \"[Help me!|Please help!|Is anybody there?]\"",
    "It was {a_friend}, who had fallen into a [deep hole|cold river|big ditch].",
    "[{name} was scared, but {he} did not run away.|{name} thought hard.|{name} ran as fast as {he} could.||]",
    "{HE} pulled and pulled until {friend} was [free|safe].",
    "To say thank you, {friend} gave {him} {a_thing}.",
    "[After that, they [played|walked|ate] together every day.|{name} was a hero that day.|They became the best of "
    "friends.|"
    "In the evening they had [cake|soup|hot milk] together.]",
)
QUARREL_PLOT = (
    "One day, {he} and {a_friend} found {a_thing}.",
    "\"It is mine!\" said {name}, and \"No, it is mine!\" said {friend}.",
    "They pulled and pulled, and the {thing} [almost broke|fell into the mud|flew into the water].",
    "[Then they both felt bad.|Then it was very quiet.||]",
    "\"I am sorry,\" said {name}, and they cleaned the {thing} together.",
    "[From then on, they took turns.|Now it belonged to both of them.|They learned that a friend is worth more than "
    "a thing.|"
    "They shared it and never fought again.]",
)
HOME_PLOT = (
    "One day, {name} went for a long walk and took only {his} {thing} along.",
    "{HE} walked so far that {he} did not know the way home.",
    "[It was getting dark and cold.|The wind began to blow.||]",
    "{name} met {a_friend} and asked, \"[Can you show me the way?|Do you know where I live?|Which way is home?]\"",
    "{FRIEND} [smiled|nodded] and walked with {him} all the way to the door.",
    "[{name} gave {friend} the {thing} to say thank you.|{name} was glad to be home again.|"
    "They waved to each other and said, \"See you tomorrow!\"|That night, {name} slept well in {his} own bed.]",
)
FINDING_PLOT = (
    "One [sunny|bright|quiet] morning, {he} found {a_thing} on the [ground|path|doorstep].",
    "\"Whose {thing} is this?\" {he} asked.",
    "{HE} went from door to door, but nobody knew.",
    "[It was a long day, but {name} did not give up.||]",
    "At last {he} met {a_friend}, who cried, \"[That is my {thing}!|You found it!|I looked for it all day!]\"",
    "[{name} gave it back and made a new friend.|{FRIEND} was so glad that they had [tea|cake|a party] together.|"
    "{name} was proud that {he} had been honest.|As a thank you, {friend} sang a song for {him}.]",
)
BIRTHDAY_PLOT = (
    "It was the birthday of {a_friend}, and {name} [had no gift yet|wanted to find a good gift].",
    "{HE} [looked in every shop|thought about it all morning|searched the whole house], but nothing was right.",
    "Then {he} had an idea: {he} would give away {his} own {thing}.",
    "{HE} put the {thing} in a box with a [red|blue|green|yellow] ribbon.",
    "[When {friend} opened the box, everyone clapped.|{FRIEND} opened the box with big eyes.||]",
    "[\"This is the best gift of all!\" said {friend}.|They ate cake and danced until night.|"
    "{name} was happy, because giving made {him} glad.|{FRIEND} hugged {name} and did not let go.]",
)
PRACTICE_PLOT = (
    "{HE} wanted to [sing|dance|swim|climb|paint|juggle|whistle], but it always went wrong.",
    "[Everybody laughed, and {name} was sad.|{HE} fell down three times.||]",
    "\"Try again tomorrow,\" said {a_friend} and gave {him} {a_thing} for luck.",
    "So {name} tried again every day, [in sun and in rain|in the morning and in the evening|with {his} {thing} "
    "beside {him}].",
    "[Slowly it went better and better.||]",
    "[After a week, {he} could do it!|At last it went well, and everybody clapped.|In the end, {he} was the best of "
    "all.|"
    "\"I knew you could do it,\" said {friend}.]",
)
STORM_PLOT = (
    "One night, there was a big storm, and the [roof of {his} home|door of {his} home|bridge] broke.",
    "{name} tried to mend it, but {he} was too [small|weak|tired] to do it alone.",
    "[The rain fell and fell.||]",
    "In the morning, {a_friend} came with {a_thing} and said, \"[Let us do it together.|Many hands make light work.]\"",
    "They worked [all day|until noon|until evening], and then everything was [as good as new|whole again|even "
    "better than before].",
    "[{name} cooked a big soup for both of them.|{name} was never afraid of a storm again.|"
    "{name} said, \"What would I do without you?\"|Then the sun came out, and they sang.]",
)
SECRET_PLOT = (
    "One day, {name} found {a_thing} in [an old box|a hollow tree|a dark corner|the sand].",
    "When {he} touched it, it [began to glow|began to sing|became warm|began to shine].",
    "\"Make a wish,\" said a soft voice.",
    "[{name} thought of gold, but {he} did not need gold.||]",
    "{name} wished for a friend, and there stood {a_friend} at the door.",
    "[They were friends ever after.|\"I was lonely too,\" said {friend}, and they both smiled.|"
    "The {thing} never spoke again, but {name} was never alone again.|They played together until the stars came out.]",
)
PRANK_PLOT = (
    "{HE} liked to [play tricks|make jokes|hide things].",
    "One day, {he} took the {thing} of {a_friend} and hid it [in a tree|under a hat|in the soup pot].",
    "{FRIEND} looked for it everywhere and was very sad.",
    "[Then it was not funny any more.||]",
    "{name} was sorry, brought the {thing} back and said, \"[Please forgive me.|I will not do it again.]\"",
    "[{FRIEND} laughed and forgave {him}.|After that, {he} only played tricks that made everybody laugh.|"
    "They shook hands and were friends again.|{name} learned that a good joke hurts nobody.]",
)
NEWCOMER_PLOT = (
    "{HE} was new there and had no friends.",
    "Every day, {he} sat alone and played with {his} {thing}.",
    "[It was very quiet.|{HE} looked at the clouds and sighed.||]",
    "One day, {a_friend} stopped and asked, \"[What a nice {thing}! May I see it?|Can I play with you?|What is your "
    "name?]\"",
    "{name} [smiled|was shy, but {he} nodded|said yes], and soon they were [laughing|playing|running around] together.",
    "[Now {name} had a friend.|It is good to have a friend.|The next day, {friend} brought more friends along.|"
    "{name} was not alone any more.]",
)
SHORT_PLOTS: tuple[Plot, ...] = (
    ("One day, {he} found {a_thing} and showed it to {a_friend}.",
     "They played with it [until it was dark|all day long] and [laughed a lot|were very happy].",
     "[From then on, they were best friends.||]"),
    ("{HE} had {a_thing}, but nobody to play with.", "[One day|Then], {a_friend} came along and said hello.",
     "[From that day on, they played together.|After that, they shared everything.|{name} was never alone again.]"),
    ("Every day, {he} gave [some|a bit] of {his} [food|bread|lunch] to {a_friend}.",
     "One day, {friend} brought {him} {a_thing} as a thank you.", "[{name} was very [happy|proud|surprised].||]"),
    ("One night, {he} heard a [strange|loud|little] noise and hid under the bed.",
     "But it was only {a_friend}, who brought back {his} {thing}.",
     "[They both laughed.|{name} laughed and said thank you.]"),
    ("One day, {he} and {a_friend} ran a race for {a_thing}.",
     "{FRIEND} fell down, and {name} stopped to help.",
     "They [finished|crossed the line] together and shared the {thing}."),
    ("One day, {a_friend} was ill and had to stay in bed.", "{name} brought {a_thing} and told funny stories.",
     "[Soon|The next day] {friend} was well again."),
    ("{HE} [worked all day|sat down] and made {a_thing} for {a_friend}.",
     "{FRIEND} [was so glad that they danced|said, \"I will keep it for ever\"].",),
)
PLOTS: tuple[Plot, ...] = (LOST_PLOT, WISH_PLOT, FEAR_PLOT, SHARING_PLOT, RESCUE_PLOT, QUARREL_PLOT, HOME_PLOT,
                           FINDING_PLOT, BIRTHDAY_PLOT, PRACTICE_PLOT, STORM_PLOT, SECRET_PLOT, PRANK_PLOT,
                           NEWCOMER_PLOT)
