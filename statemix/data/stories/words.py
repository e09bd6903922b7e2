"""The words of stories."""

__all__ = ["ADJECTIVES", "NAMES", "NOUNS", "PLACES", "STEPS", "THINGS", "VERBS"]

NAMES = ("Ann", "Bob", "Cat", "Dan", "Eve")
THINGS = ("key", "cup", "ball", "hat", "pen")
PLACES = ("red", "blue", "green", "white", "black")
STEPS = ("one", "two", "three", "four")

_NOUNS = """
sun moon star sky tree leaf flower grass bird cat dog horse cow fish river lake sea beach hill
garden field forest house door window roof kitchen table chair bed lamp street road bridge market
shop school church tower train boat car bread soup milk apple music song book
"""
_ADJECTIVES = """
warm cold hot cool old new young quiet loud near far dark bright slow quick small large sweet dry
wet empty full fine good bad soft hard long short high low round flat clean busy calm famous
strange simple pretty heavy gentle golden silver wooden broken hidden open closed
"""
NOUNS = tuple(_NOUNS.split())
ADJECTIVES = tuple(_ADJECTIVES.split())
VERBS = ("sees", "likes", "hears", "knows", "calls", "thanks", "greets", "meets", "helps", "visits")
