"""GRPO on GSM8K as in gsm8k_grpo_config.py, but training only LoRA adapters."""
from ding_grpo.entry import complete, run, shipped_config

main_config, create_config = shipped_config('gsm8k_grpo', 'runs/gsm8k_lora_grpo')
model, learn = main_config.policy.model, main_config.policy.learn
model.update(dtype='bfloat16', save_merged=True)  # bfloat16 for the model; the adapters are float32
model.lora = dict(r=16, lora_alpha=32, target_modules='all-linear')
# The KL is that to the pretrained model: without the adapters.
learn.update(learning_rate=2e-5, kl=dict(beta=0.01, type='k3'))
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
