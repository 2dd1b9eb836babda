"""Shared by ``ding_grpo`` and ``dizoo_llm``: one-line errors, strict configs, a quiet import of DI-engine."""
from .config.check import (
    MOST, Rule, check_arguments, check_config, check_not_async, is_async, is_reward, nearest, require_dict
)
from .config.config_file import (
    ConfigFile, check_configs, find_config, is_read_as_written, read_config_file, read_main_config, require_section,
    shipped_config
)
from .config.total_config import code_of, read_total_config
from .errors import (
    CheckpointError, ConfigError, NumericError, PeerError, TaskError, config_errors, describe, environment_errors,
    is_not_installed, unwrap_task_error
)
from .files import check_is_file, check_links, import_modules, import_name, run_file
from .output.json_lines import append_json, json_lines, read_json_lines
from .output.printable import counted, echo, printable
from .quiet import ending_at_once, import_ding, importing, is_program, uncollected
