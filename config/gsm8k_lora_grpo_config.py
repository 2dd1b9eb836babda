"""GRPO on GSM8K as in gsm8k_grpo_config.py, but training only LoRA adapters."""
from ding_common import shipped_config
from ding_grpo.entry import complete, run

main_config, create_config = shipped_config('gsm8k_grpo')
main_config.exp_name = 'runs/gsm8k_lora_grpo'
main_config.policy.model.update(
    dtype='bfloat16',  # the adapters are float32
    lora=dict(r=16, lora_alpha=32, target_modules='all-linear'),
    save_merged=True,
)
# The KL is that to the pretrained model: without the adapters.
main_config.policy.learn.update(learning_rate=2e-5, kl=dict(beta=0.01, type='k3'))
complete(main_config, create_config)

if __name__ == '__main__':
    run(__file__)
