"""Words of the demo world: its names, animals, things and places, and tables of facts about them. Lists only."""

GIRL_NAMES = (
    "Mia", "Anna", "Emma", "Lily", "Lucy", "Ella", "Rose", "Ruby", "Nora", "Zoe", "Ada", "Amy", "Ivy", "Eva", "Clara",
    "Alice", "Sara", "Julia", "Maria", "Sophie", "Grace", "Hanna", "Lena", "Molly", "Daisy", "Bella", "Kate", "Olga",
    "Nina", "Tina", "Pia", "Maya", "Leila", "Aisha", "Yuki", "Mei", "Priya", "Rosa", "Carla", "Ines", "Freya", "Greta",
    "Heidi", "Jane", "Laura", "Linda", "Mary", "Paula", "Sue", "Vera", "Wendy", "Polly", "Dora", "Fiona", "Gina",
    "Holly", "Kim", "Olivia",
)
BOY_NAMES = (
    "Tom", "Ben", "Max", "Leo", "Sam", "Tim", "Jack", "Finn", "Noah", "Paul", "Peter", "Oscar", "Otto", "Felix", "Hugo",
    "Adam", "Alex", "Anton", "Carl", "Dan", "David", "Emil", "Eric", "Frank", "Fred", "George", "Henry", "Ian", "Jacob",
    "Jim", "Joe", "John", "Jonas", "Karl", "Liam", "Luke", "Mark", "Mike", "Nick", "Oliver", "Omar", "Pablo", "Ray",
    "Rico", "Simon", "Theo", "Toby", "Victor", "Will", "Ali", "Amir", "Bruno", "Hans", "Ivan", "Kenji", "Ravi",
    "Walter",
)

ANIMALS = (
    "cat", "dog", "cow", "pig", "horse", "sheep", "goat", "duck", "goose", "hen", "rooster", "mouse", "rat", "rabbit",
    "hare", "fox", "wolf", "bear", "deer", "squirrel", "hedgehog", "badger", "beaver", "mole", "otter", "frog", "toad",
    "snake", "lizard", "turtle", "snail", "worm", "bee", "ant", "spider", "butterfly", "ladybug", "fly", "owl", "crow",
    "sparrow", "swan", "eagle", "parrot", "penguin", "robin", "pigeon", "fish", "shark", "whale", "dolphin", "crab",
    "octopus", "seal", "lion", "tiger", "elephant", "giraffe", "zebra", "monkey", "gorilla", "hippo", "rhino", "camel",
    "kangaroo", "koala", "panda", "crocodile", "donkey", "hamster", "kitten", "puppy", "pony", "lamb", "chick", "bat",
)
CREATURES = ("dragon", "robot", "unicorn", "giant", "ghost", "snowman", "troll", "dwarf", "elf", "monster", "dinosaur",
             "alien")
FEMALE_CHARACTERS = ("girl", "queen", "princess", "witch", "fairy", "grandmother", "mermaid")
MALE_CHARACTERS = ("boy", "king", "prince", "knight", "wizard", "grandfather", "pirate")
TRADES = ("baker", "farmer", "doctor", "teacher", "sailor", "gardener", "painter", "cook", "tailor", "fisher", "singer",
          "child")

THINGS = (
    "ball", "kite", "hat", "key", "book", "box", "drum", "bell", "cup", "coin", "ring", "boat", "lamp", "map", "shell",
    "stone", "feather", "basket", "blanket", "button", "doll", "bag", "apple", "pear", "cake", "cookie", "flower",
    "leaf", "seed", "nut", "spoon", "bottle", "ribbon", "scarf", "coat", "shoe", "star", "toy car", "toy train",
    "teddy bear", "balloon", "umbrella", "flute", "whistle", "mirror", "brush", "rope", "ladder", "wagon", "pencil",
    "letter", "pillow", "egg", "crown", "lantern",
)
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "pink", "orange", "purple", "grey", "golden",
           "silver")
# Adjectives of things in requests: colours and other looks.
THING_ADJECTIVES = (*COLOURS, "old", "new", "shiny", "little", "big", "magic")
CHARACTER_TRAITS = ("brave", "tiny", "little", "big", "lazy", "hungry", "shy", "clever", "kind", "sad", "happy",
                    "curious", "old", "young", "lonely", "funny", "proud", "quiet", "sleepy", "small", "wise", "silly",
                    "friendly", "poor")
PLACE_PHRASES = (
    "in the forest", "in the garden", "in a small village", "in the mountains", "in a castle", "in a big city",
    "in the jungle", "in the desert", "in a cave", "in the park", "in an old tower", "in a quiet valley", "on a farm",
    "on an island", "on a hill", "on the beach", "on a ship", "on the moon", "by the sea", "by a lake", "by the river",
    "near a pond", "at the zoo", "in a little house", "under a bridge", "in the meadow", "in a hollow tree",
)

ANIMAL_SOUNDS = {
    "cat": "meow", "dog": "woof", "cow": "moo", "pig": "oink", "horse": "neigh", "sheep": "baa", "goat": "maa",
    "duck": "quack", "goose": "honk", "hen": "cluck", "rooster": "cock-a-doodle-doo", "mouse": "squeak",
    "frog": "ribbit", "bee": "buzz", "owl": "hoo", "crow": "caw", "lion": "roar", "wolf": "howl", "snake": "hiss",
    "bird": "tweet", "donkey": "hee-haw", "bear": "growl", "chick": "peep", "monkey": "ooh-ooh", "pigeon": "coo",
    "elephant": "toot",
}
ANIMAL_HOMES = {
    "bee": "a hive", "bird": "a nest", "dog": "a kennel", "horse": "a stable", "cow": "a barn", "pig": "a sty",
    "fox": "a den", "bear": "a cave", "rabbit": "a burrow", "spider": "a web", "fish": "a pond", "whale": "the sea",
    "shark": "the sea", "lion": "the grassland", "monkey": "the jungle", "camel": "the desert", "ant": "an ant hill",
    "squirrel": "a tree", "owl": "a hollow tree", "beaver": "a lodge", "hen": "a coop", "mouse": "a hole",
    "frog": "a pond", "king": "a castle", "penguin": "the cold south", "mole": "a tunnel", "snail": "a shell",
    "duck": "a pond", "crab": "the sea", "octopus": "the sea", "wolf": "the forest", "deer": "the forest",
    "parrot": "the jungle",
}
ANIMAL_FOODS = {
    "cat": "fish", "dog": "meat", "cow": "grass", "horse": "hay", "rabbit": "carrots", "mouse": "cheese",
    "bear": "honey", "monkey": "bananas", "squirrel": "nuts", "panda": "bamboo", "lion": "meat", "sheep": "grass",
    "hen": "corn", "koala": "leaves", "giraffe": "leaves", "penguin": "fish", "spider": "flies", "frog": "flies",
    "owl": "mice", "goat": "grass", "elephant": "leaves", "seal": "fish", "crow": "seeds", "worm": "earth",
    "snail": "leaves", "wolf": "meat",
}
ANIMAL_BABIES = {
    "cat": "kitten", "dog": "puppy", "cow": "calf", "horse": "foal", "sheep": "lamb", "goat": "kid", "pig": "piglet",
    "hen": "chick", "duck": "duckling", "goose": "gosling", "bear": "cub", "lion": "cub", "deer": "fawn",
    "frog": "tadpole", "swan": "cygnet", "kangaroo": "joey", "fox": "cub", "wolf": "pup", "seal": "pup", "owl": "owlet",
    "elephant": "calf",
}
LEG_COUNTS = {
    "cat": "four", "dog": "four", "cow": "four", "horse": "four", "bird": "two", "hen": "two", "duck": "two",
    "ant": "six", "bee": "six", "fly": "six", "spider": "eight", "snake": "no", "fish": "no", "worm": "no",
    "elephant": "four", "frog": "four", "penguin": "two", "butterfly": "six", "table": "four", "owl": "two",
    "mouse": "four", "pig": "four",
}
# From the smallest to the largest.
THINGS_BY_SIZE = ("ant", "bee", "mouse", "frog", "duck", "cat", "fox", "sheep", "lion", "cow", "elephant", "house",
                  "mountain")
OPPOSITES = {
    "hot": "cold", "big": "small", "up": "down", "left": "right", "day": "night", "fast": "slow", "happy": "sad",
    "old": "young", "good": "bad", "open": "closed", "full": "empty", "hard": "soft", "heavy": "light", "high": "low",
    "in": "out", "long": "short", "loud": "quiet", "near": "far", "rich": "poor", "strong": "weak", "thick": "thin",
    "wet": "dry", "early": "late", "clean": "dirty", "black": "white", "first": "last", "yes": "no", "true": "false",
    "love": "hate", "win": "lose", "buy": "sell", "push": "pull", "give": "take", "begin": "end", "come": "go",
    "dark": "bright", "easy": "difficult", "sweet": "sour", "brave": "afraid", "north": "south", "east": "west",
    "summer": "winter", "friend": "enemy", "question": "answer", "always": "never", "inside": "outside", "laugh": "cry",
    "asleep": "awake", "over": "under", "sharp": "blunt", "deep": "shallow", "wide": "narrow", "before": "after",
    "more": "less",
}
THING_COLOURS = {  # colours of things and of substances
    "grass": "green", "snow": "white", "the sky": "blue", "the sun": "yellow", "blood": "red", "coal": "black",
    "milk": "white", "a banana": "yellow", "a lemon": "yellow", "a carrot": "orange", "an orange": "orange",
    "a tomato": "red", "a strawberry": "red", "a cherry": "red", "the sea": "blue", "a leaf": "green",
    "a frog": "green", "a fox": "red", "a crow": "black", "a swan": "white", "an elephant": "grey", "a mouse": "grey",
    "a pig": "pink", "a polar bear": "white", "a bear": "brown", "chocolate": "brown", "wood": "brown",
    "the night": "black", "gold": "yellow", "silver": "grey", "a cucumber": "green", "a lion": "yellow",
    "salt": "white", "rice": "white", "a cloud": "white", "a rose": "red", "a plum": "purple", "a pea": "green",
    "honey": "golden", "sand": "yellow", "smoke": "grey", "a fire engine": "red",}
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")
SEASONS = ("spring", "summer", "autumn", "winter")
IRREGULAR_PLURALS = {  # plurals
    "mouse": "mice", "child": "children", "foot": "feet", "tooth": "teeth", "goose": "geese", "man": "men",
    "woman": "women", "sheep": "sheep", "fish": "fish", "leaf": "leaves", "wolf": "wolves", "knife": "knives",
    "ox": "oxen", "deer": "deer", "loaf": "loaves", "person": "people", "wife": "wives", "half": "halves",
    "shelf": "shelves", "elf": "elves", "dwarf": "dwarves", "thief": "thieves",}
PAST_TENSES = {
    "go": "went", "see": "saw", "eat": "ate", "run": "ran", "come": "came", "give": "gave", "take": "took",
    "make": "made", "say": "said", "sing": "sang", "swim": "swam", "drink": "drank", "begin": "began", "sleep": "slept",
    "keep": "kept", "write": "wrote", "ride": "rode", "drive": "drove", "fly": "flew", "know": "knew", "grow": "grew",
    "throw": "threw", "find": "found", "hold": "held", "tell": "told", "sell": "sold", "buy": "bought",
    "bring": "brought", "think": "thought", "catch": "caught", "teach": "taught", "fall": "fell", "feel": "felt",
    "leave": "left", "lose": "lost", "meet": "met", "sit": "sat", "stand": "stood", "win": "won", "build": "built",
    "send": "sent", "break": "broke", "speak": "spoke", "wear": "wore", "hide": "hid", "draw": "drew", "have": "had",
    "do": "did", "play": "played", "jump": "jumped", "walk": "walked", "look": "looked", "help": "helped",
    "cook": "cooked", "laugh": "laughed", "dance": "danced", "smile": "smiled", "open": "opened", "paint": "painted",
    "try": "tried", "cry": "cried", "stop": "stopped",
}
RHYMES = (
    ("cat", "hat", "mat", "bat", "rat"), ("dog", "frog", "log", "fog"), ("tree", "bee", "sea", "knee", "three"),
    ("house", "mouse"), ("moon", "spoon", "soon", "noon"), ("star", "car", "jar", "far"), ("cake", "lake", "snake",
                                                                                           "make"),
    ("ring", "king", "sing", "wing"), ("night", "light", "bright", "kite"), ("day", "play", "way", "say"),
    ("sun", "fun", "run", "one"), ("boat", "goat", "coat"), ("fish", "dish", "wish"), ("bed", "red", "head", "bread"),
    ("fox", "box", "socks"), ("blue", "shoe", "two", "new"), ("rain", "train", "plane"), ("ball", "wall", "tall",
                                                                                          "small"),
    ("bell", "shell", "well", "tell"), ("pen", "hen", "ten", "men"), ("nose", "rose", "toes"), ("sky", "fly", "high",
                                                                                                "pie"),
    ("door", "floor", "four", "more"), ("bear", "pear", "chair", "hair"), ("book", "cook", "look"), ("green", "queen",
                                                                                                     "bean"),
    ("snow", "crow", "bow", "go"), ("pig", "wig", "big", "dig"), ("nut", "hut", "cut"), ("hill", "mill", "still"),
)
COUNTRY_CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "England": "London", "Ireland": "Dublin", "Austria": "Vienna", "Greece": "Athens", "Poland": "Warsaw",
    "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen", "Russia": "Moscow",
    "Hungary": "Budapest", "Belgium": "Brussels", "Switzerland": "Bern", "Japan": "Tokyo", "China": "Beijing",
    "India": "New Delhi", "Egypt": "Cairo", "Kenya": "Nairobi", "Canada": "Ottawa", "Mexico": "Mexico City",
    "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago", "Turkey": "Ankara", "Iran": "Tehran", "Iraq": "Baghdad",
    "Iceland": "Reykjavik", "Australia": "Canberra", "the United States": "Washington", "the Netherlands": "Amsterdam",
    "Scotland": "Edinburgh",
}
TRADES_BY_ACTIVITY = {
    "bakes bread": "baker", "grows corn": "farmer", "helps sick people": "doctor", "teaches children": "teacher",
    "sails a ship": "sailor", "cuts hair": "barber", "puts out fires": "firefighter", "catches fish": "fisher",
    "flies a plane": "pilot", "drives a bus": "bus driver", "brings letters": "mail carrier",
    "builds houses": "builder", "makes clothes": "tailor", "paints pictures": "painter", "writes books": "writer",
    "sings songs": "singer", "mends shoes": "cobbler", "works with wood": "carpenter", "cooks food": "cook",
    "looks after teeth": "dentist", "plants flowers": "gardener", "helps sick animals": "vet",
    "catches thieves": "police officer", "wears a crown": "king",
}
THING_CATEGORIES = {  # the category of each thing
    **dict.fromkeys(("cat", "dog", "cow", "lion", "bear", "mouse", "horse", "fox"), "animal"),
    **dict.fromkeys(("owl", "crow", "eagle", "penguin", "duck", "swan"), "bird"),
    **dict.fromkeys(("bee", "ant", "fly", "butterfly", "ladybug"), "insect"),
    **dict.fromkeys(("apple", "banana", "pear", "cherry", "plum", "orange", "lemon", "grape"), "fruit"),
    **dict.fromkeys(("carrot", "potato", "onion", "cabbage", "pea", "cucumber"), "vegetable"),
    **dict.fromkeys(("hammer", "saw", "axe", "spade", "screwdriver"), "tool"),
    **dict.fromkeys(("doll", "kite", "ball", "teddy bear", "puzzle"), "toy"),
    **dict.fromkeys(("hat", "coat", "shirt", "scarf", "sock"), "piece of clothing"),
    **dict.fromkeys(("rose", "tulip", "daisy", "sunflower", "lily"), "flower"),
    **dict.fromkeys(("oak", "pine", "birch", "palm", "willow"), "tree"),
    **dict.fromkeys(("drum", "flute", "piano", "guitar", "violin", "trumpet"), "musical instrument"),
    **dict.fromkeys(("car", "bus", "train", "truck", "bicycle"), "vehicle"),
    **dict.fromkeys(("chair", "table", "bed", "desk", "shelf"), "piece of furniture"),
}
THING_USES = {
    "pen": "writing", "key": "opening doors", "knife": "cutting", "spoon": "eating soup", "bed": "sleeping",
    "cup": "drinking", "broom": "sweeping the floor", "oven": "baking", "clock": "telling the time",
    "umbrella": "keeping dry in the rain", "lamp": "making light", "bag": "carrying things", "brush": "painting",
    "book": "reading", "chair": "sitting", "hammer": "hitting nails", "boat": "crossing water",
    "map": "finding the way", "needle": "sewing", "saw": "cutting wood", "kettle": "boiling water",
    "towel": "drying your hands", "ladder": "climbing up", "mirror": "looking at yourself",
    "phone": "talking to people far away", "coat": "keeping warm", "whistle": "making a loud sound",
}
BODY_PARTS_BY_ACTIVITY = {"see": "eyes", "hear": "ears", "smell": "nose", "taste": "tongue", "walk": "feet",
                          "think": "head", "bite": "teeth", "touch things": "hands", "kick a ball": "feet",
                          "talk": "mouth", "clap": "hands", "chew": "teeth"}
FEELINGS_BAD = ("sad", "tired", "angry", "lonely", "ill", "sick", "afraid", "worried", "hungry", "cold", "unhappy",
                "nervous", "lost", "thirsty", "stressed", "scared")
FEELINGS_GOOD = ("happy", "glad", "well", "great", "proud", "excited", "in love", "calm", "lucky", "cheerful",
                 "fine again")
CITIES = (*COUNTRY_CAPITALS.values(), "Hamburg", "Munich", "Milan", "Boston", "Chicago", "Seoul", "Sydney", "Kyoto",
          "Lyon", "Porto", "York")
FOODS = ("soup", "bread", "cake", "cheese", "rice", "honey", "pizza", "pasta", "fish", "salad", "ice cream",
         "chocolate", "apples", "bananas", "pears", "carrots", "tomatoes", "pancakes", "cookies", "eggs", "corn",
         "grapes", "cherries", "milk", "jam")
