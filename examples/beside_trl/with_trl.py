from datasets import load_dataset
from rewards import correct
from trl import GRPOConfig, GRPOTrainer

config = GRPOConfig(
    output_dir='trl',
    max_steps=30,
    per_device_train_batch_size=64,
    num_generations=8,
    max_completion_length=16,
    learning_rate=1e-5,
    lr_scheduler_type='constant_with_warmup',
    warmup_steps=5,
    loss_type='dapo',
    scale_rewards='none',
    max_grad_norm=1.0,
    model_init_kwargs=dict(dtype='float32'),
    gradient_checkpointing=False,
    bf16=False,
    use_cpu=True,
    report_to='none',
    save_strategy='no',
    seed=0
)
data = load_dataset('json', data_files='train.jsonl', split='train')
trainer = GRPOTrainer(model='model', reward_funcs=correct, args=config, train_dataset=data)
trainer.train()
trainer.save_model('trained')
