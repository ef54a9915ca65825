"""What the model is asked and what it must answer: the five tasks, made by seed.

Everything here is generated; there is no data set. Each item is either for training or held out,
and which one is decided by a hash of its content, so an item that the evaluation asks was never
trained on, whatever the seed.
"""

import string
import zlib
from dataclasses import dataclass

WORDS = """
able acorn across add after again air all along also amber and angle animal answer ant apple april
arch arm ask autumn away baby bag baker bank barn basil bath beach bean bear before bell bench berry
better big bird black blue board boat body book both bottle bowl box boy branch brave bread bridge
bright bring brother brown brush build bus butter button cabin cake call calm camel camp candle card
carpet carry castle cat chair chalk cheese cherry child church circle city clay clean clear clever
clock cloud coat coffee cold color come copper corn corner cotton cousin cover cow crane cream crow
cup curtain dance dark daughter day deep deer desert desk dinner doctor dog door dragon draw dream
dress drink drive drum dry duck dust eagle early earth east easy edge egg eight elbow empty engine
evening every eye face fall family farm fast father feather fence field fig find fire fish five flag
floor flower fly fog follow forest fork four fox frame fresh friend frog from front fruit full game
garden gate gentle girl give glass glove goat gold good grain grape grass gray green ground guest
guitar half hammer hand happy harbor hat have hawk head heart heavy hello here hill hole home honey
horse hot hour house hundred ice in ink into iron island jacket jar jelly join juice jump kettle key
kind king kitchen kite knee knife lake lamp land large late laugh leaf learn left lemon letter level
light like line linen lion listen little long look lost loud lunch made mango many maple map marble
market meadow meet melon metal middle milk mill mint mirror moon morning moss mother mountain mouse
mouth move music nail name narrow near neck needle nest never new night nine noise north nose note
number oak ocean of often oil old olive onion open orange other oven over owl own paint paper park
path peach pear pencil pepper piano pilot pine pink pipe place plain plant plate play plum pocket
poem pond potato quick quiet rabbit rain raven read red rest rice ride right ring river road rock
roof room rose round rope sail salt sand school scissors sea seed seven shade sheep shell ship shirt
shoe shop short silver sing sister six sky sleep slow small snow soap soft song soup south spider
spoon spring square stable star stone storm story straw street strong sugar summer sun swan sweet
table tail tall tea tell the there thin three tiger time tin to today tomato tower town train travel
tree tulip turn turtle two uncle under valley velvet very village violin walk wall warm was water
wave wax west wheat wheel where white wide wind window winter wise with wolf wood wool word work
write yard year yellow young zebra
""".split()

NAMES = """
Ada Adam Alan Alice Amir Ana Anna Arthur Barbara Ben Bob Carla Carol Clara Dan David Dora Edgar Ella
Emil Emma Eva Felix Fiona Frank Grace Greta Hana Hans Harry Helen Hugo Ida Ines Ivan Jack James Jana
John Jonas Julia Karl Kate Kim Lara Lea Leo Lily Linus Lisa Lucy Luis Maria Mark Marta Max Mia Mira
Nadia Nina Noah Nora Olga Oscar Otto Paul Pedro Peter Rita Robert Rosa Ruth Sam Sara Simon Sofia Tim
Tom Tove Uma Vera Victor Walter Wendy Yara Zoe
""".split()

FOREIGN = "äöüßéèñçåøšžαβλπдяж€→日本語中🙂🚀"
PUNCTUATION = ".,!?;:-'\"()+=/*#&%_"

TASKS = ("sum", "difference", "reverse", "repeat", "json")

EXPRESSION_FORMS = (
    "{}=", "{}=", "{}=", "{}", "{}", "{}?", "What is {}?", "What is {}?", "What is {}?",
    "what is {}?", "What's {}?", "What is {}", "Compute {}", "Compute {}.", "Calculate {}",
    "Calculate {}.", "How much is {}?", "Please compute {}.", "Hi! What is {}?", "Tell me {}",
)  # fmt: skip
REVERSE_FORMS = (
    "reverse: {}", "reverse: {}", "Reverse: {}", "reverse {}", "Reverse {}", "Reverse the word {}",
    "Reverse the word {}", "Reverse the word {}.", "Please reverse the word {}.", "reverse the word {}",
)  # fmt: skip
REPEAT_FORMS = ("repeat: {}", "repeat: {}", "Repeat: {}", "Repeat after me: {}", "Please repeat: {}")
AGE_FORMS = ("{} is {} years old", "{} is {} years old", "{} is {} years old.")


@dataclass(frozen=True)
class Question:
    """One question, its only right answer, and for arithmetic the bare expression."""

    task: str
    text: str
    answer: str
    expression: str = ""


def held_out(key):
    """Say whether the item named `key` is kept for the evaluation (one in ten is)."""
    return zlib.crc32(key.encode()) % 10 == 0


def draw(make, test):
    """Call `make` until its item falls on the wanted side of the split."""
    while True:
        item = make()
        if held_out(str(item)) == test:
            return item


def letters(rng, low, high):
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(low, high)))


def any_word(rng):
    """A word for running text: mostly a known one, at times letters."""
    return rng.choice(WORDS) if rng.random() < 0.8 else letters(rng, 1, 9)


def number(rng):
    """0 to 99, with single digits more often than their share."""
    return rng.randrange(100) if rng.random() < 0.8 else rng.randrange(10)


def expression_text(rng, bare):
    """Put an expression into one of the forms of asking for it, with or without spaces."""
    shown = bare
    if rng.random() < 0.3:
        for sign in "+-*/":
            shown = shown.replace(sign, f" {sign} ")
    text = rng.choice(EXPRESSION_FORMS).format(shown)
    return text.replace("=", " =") if " " in shown and text.endswith("=") else text


def arithmetic(rng, sign, test):
    a, b = draw(lambda: (number(rng), sign, number(rng)), test)[::2]
    bare = f"{a}{sign}{b}"
    answer = str(a + b if sign == "+" else a - b)
    return Question("sum" if sign == "+" else "difference", expression_text(rng, bare), answer, bare)


def large_expression(rng):
    """An expression beyond what the model can work out itself; only a calculator answers it."""
    bare = str(rng.randrange(10 ** rng.randint(1, 4)))
    for _ in range(rng.choice((1, 1, 2))):
        bare += rng.choice("+-*/") + str(rng.randrange(10 ** rng.randint(1, 4)))
    return Question("large", expression_text(rng, bare), "", bare)


def reverse(rng, test):
    def word():
        if rng.random() < 0.4:
            while not 3 <= len(known := rng.choice(WORDS)) <= 7:
                pass
            return known
        return letters(rng, 3, 7)

    chosen = draw(word, test)
    return Question("reverse", rng.choice(REVERSE_FORMS).format(chosen), chosen[::-1])


def text_to_repeat(rng):
    """Up to 40 characters of words, numbers, signs and, now and then, letters beyond ASCII."""
    limit, text = rng.randint(1, 40), ""
    plain = rng.random() < 0.4
    while len(text) < limit:
        kind = rng.random()
        if plain or kind < 0.55:
            piece = any_word(rng)
            piece = piece.capitalize() if rng.random() < 0.15 else piece
        elif kind < 0.7:
            piece = str(rng.randrange(10 ** rng.randint(1, 6)))
        elif kind < 0.8:
            piece = f"{number(rng)}{rng.choice('+-')}{number(rng)}{rng.choice(('', '='))}"
        elif kind < 0.95:
            piece = "".join(rng.choices(string.ascii_letters + string.digits + PUNCTUATION, k=rng.randint(1, 8)))
        else:
            piece = "".join(rng.choices(FOREIGN, k=rng.randint(1, 4)))
        if not plain and rng.random() < 0.25:
            piece += rng.choice(PUNCTUATION)
        text += piece + " "
    return text[:limit].strip() or "a"


def repeat(rng, test):
    text = draw(lambda: text_to_repeat(rng), test)
    return Question("repeat", rng.choice(REPEAT_FORMS).format(text), text)


def age(rng, test):
    def name():
        return rng.choice(NAMES) if rng.random() < 0.4 else letters(rng, 2, 9).capitalize()

    chosen, years = draw(name, test), rng.randint(1, 99)
    return Question("json", rng.choice(AGE_FORMS).format(chosen, years), f'{{"name":"{chosen}","age":{years}}}')


def make_question(rng, task, test=False):
    """Return a question of `task`, from the held-out items if `test`."""
    if task == "sum":
        return arithmetic(rng, "+", test)
    if task == "difference":
        return arithmetic(rng, "-", test)
    return {"reverse": reverse, "repeat": repeat, "json": age}[task](rng, test)
