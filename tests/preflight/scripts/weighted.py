"""Several reward functions with weights: one has a hack, one never changes, one is a reward model."""
import trl

ROWS = [dict(prompt=f'Letter number {i}:', solution=chr(97 + i)) for i in range(8)]


def mentions(completions, solution, **kwargs):
    return [1.0 if right in text else 0.0 for text, right in zip(completions, solution)]


def polite(completions, **kwargs):
    return [1.0] * len(completions)


if __name__ == '__main__':
    config = trl.GRPOConfig(output_dir='out', reward_weights=[1.0, 0.5, 2.0])
    trainer = trl.GRPOTrainer(
        model='some/model', reward_funcs=[mentions, polite, 'some/reward-model'], args=config, train_dataset=ROWS
    )
    trainer.train()
