"""What both halves of the plugin stand on: errors that end in one line, strict configs, a quiet import of DI-engine."""
from .check import Rule, check_config, nearest
from .errors import CheckpointError, ConfigError, NumericError, PeerError, TaskError, unwrap_task_error
from .json_lines import append_json, read_json_lines
from .quiet import import_ding
