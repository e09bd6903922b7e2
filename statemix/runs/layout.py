"""The files in a run's directory.

config.json               the run's config
files.json                hashes of the user's files that define its mixer and task
metrics.jsonl             a line per epoch (tasks) or step (language models)
checkpoint.safetensors    the last checkpoint of a task
checkpoints/              the last few checkpoints of a language model
certificate/              a proof that a trained model is right on every word of every length
final/                    a trained language model
result.json               what a finished run reports
lock                      held by the process that trains the run
"""

__all__ = [
    "CERTIFICATES",
    "CHECKPOINT",
    "CHECKPOINTS",
    "CONFIG",
    "FILES",
    "FINAL",
    "LOCK",
    "METRICS",
    "RESULT",
]

CONFIG = "config.json"
FILES = "files.json"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.safetensors"
CHECKPOINTS = "checkpoints"
CERTIFICATES = "certificate"
FINAL = "final"
RESULT = "result.json"
LOCK = "lock"
