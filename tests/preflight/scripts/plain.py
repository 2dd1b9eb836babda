"""Plain strings, at module level."""
from trl import GRPOConfig, GRPOTrainer

train = [dict(prompt=f'Letter number {i}:', answer=chr(97 + i)) for i in range(8)]


def last_word(completions, answer, **kwargs):
    return [float(text.split()[-1:] == [right]) for text, right in zip(completions, answer)]


trainer = GRPOTrainer(
    model='Qwen/Qwen2.5-0.5B-Instruct',
    reward_funcs=last_word,
    args=GRPOConfig(output_dir='out', max_completion_length=64, learning_rate=1e-6, num_generations=8),
    train_dataset=train,
)
trainer.train()
trainer.save_model('out')
