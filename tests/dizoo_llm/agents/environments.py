"""Environment classes of the tests."""
import threading
import time

SEEN = []  # what ``record`` got


def record(prompts, completions, environments, **columns):
    SEEN.append(dict(prompt=prompts[0], completion=completions[0], environment=environments[0], columns=columns))
    return [1.0]


class Counter:
    made = 0

    def __init__(self):
        type(self).made += 1
        self.threads = {threading.get_ident()}
        self.resets = []

    def reset(self, start=0, text=None, **columns):
        self.threads.add(threading.get_ident())
        self.resets.append(columns)
        self.total = start
        return text

    def add(self, number: int) -> str:
        """
        Adds.

        Args:
            number: What.
        """
        self.threads.add(threading.get_ident())
        if number > 99:
            raise ValueError('too much')
        self.total += number
        return f'total {self.total}'

    async def wait(self, number: int) -> str:
        """
        Waits.

        Args:
            number: Fails above 9.
        """
        if number > 9:
            raise OSError('no time')
        return f'waited at {self.total}'

    def none(self) -> None:
        """Nothing."""

    def stop(self) -> str:
        """Raises StopIteration."""
        return next(iter([]))

    def picture(self) -> list:
        """Draws."""
        return [dict(type='image', image='pixels')]

    def parts(self) -> list:
        """Returns parts."""
        return [dict(type='text', text='one '), dict(type='text', text='two')]

    def sleep(self) -> str:
        """Hangs."""
        time.sleep(3)
        return 'slept'

    def leave(self) -> str:
        """Exits."""
        raise SystemExit(3)

    @staticmethod
    def fixed(number: int) -> int:
        """
        Static.

        Args:
            number: Any.
        """
        return number

    @property
    def value(self):
        raise AssertionError('a property is not a tool')

    @classmethod
    def of(cls):
        raise AssertionError('a class method is not a tool')

    def _private(self):
        raise AssertionError('a private method is not a tool')

    def get_reward(self):
        return float(self.total)


class Child(Counter):

    def twice(self) -> str:
        """Doubles."""
        self.total *= 2
        return str(self.total)


class Other:
    """Without tools but one, and without ``get_reward``."""

    def reset(self, **columns):
        self.columns = columns

    def look(self) -> str:
        """Looks."""
        return 'seen'


class Slow(Other):

    async def get_reward(self):
        return 5


class Undescribed(Other):

    def bare(self, x):
        pass


class Strict(Other):

    def reset(self, prompt):
        pass


class Names(Other):
    """Arguments with the names that callers have themselves."""

    def reset(self, function, instance, **columns):
        return f'{function} {instance}'

    def plot(self, function: str) -> str:
        """
        Plots.

        Args:
            function: What.
        """
        return f'plot of {function}'

    async def draw(self, function: str) -> str:
        """
        Draws.

        Args:
            function: What.
        """
        return f'picture of {function}'

    async def quit(self) -> str:
        """Exits."""
        raise SystemExit(3)


def named(completions, function, instance, environments):
    return [float(len(function[0]))]


class Changing(Other):

    def reset(self, cards, **columns):
        return str(cards.pop())


class Letters(Other):
    """Returns the number of its row; pays for letters."""

    def reset(self, number, **columns):
        self.letters = 0
        return str(number)

    async def get_reward(self):
        return self.letters


def letters(completions, environments, **columns):
    environments[0].letters = sum(map(str.isalpha, completions[0][-1]['content']))
    return [None]


def make():
    return Counter()


async def later(completions, **columns):
    return [float(len(completions[0]))]


def some(environments, kind, **columns):
    return [2.0 if kind[0] == 'some' else None]


def two(completions, **columns):
    return [1.0, 2.0]


def fails(completions, **columns):
    raise RuntimeError('no judge')


def of_trainer(completions, trainer_state):
    return [1.0]


def misnamed(completions, answr):
    return [1.0]
