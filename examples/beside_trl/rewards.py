"""A reward function in TRL's form, for both programs."""
import re


def correct(completions, answer, **columns):
    texts = [messages[0]['content'] for messages in completions]
    return [float(re.findall(r'\d+', text)[-1:] == [right]) for text, right in zip(texts, answer)]
