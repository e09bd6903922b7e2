"""The exported model in the lm-eval harness, on tasks in local files."""

import json
import os
import subprocess
import sys

import pytest
import torch
from test_lm_text import CONFIG, TEXT, build, tokenizer_file  # noqa: F401

from statemix.commands.views.lm_eval import measure_texts
from statemix.lm import load_model, save_model

pytest.importorskip(
    "lm_eval", reason="lm-eval brings dozens of packages; it is in the extra `eval`"
)
pytestmark = pytest.mark.slow

ROLLING = """
task: local_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: bits_per_byte}}]
"""


def test_bits_per_byte_match(tmp_path, tokenizer_file):  # noqa: F811
    """Both programs score the text as one sequence after the end-of-text token, and agree."""
    from statemix.hf.export import export_model

    text, data = tmp_path / "text.txt", tmp_path / "text.jsonl"
    text.write_text(TEXT * 3)
    data.write_text(json.dumps({"text": TEXT * 3}) + "\n")
    (tmp_path / "local_text.yaml").write_text(ROLLING.format(data=data))
    save_model(tmp_path / "final", CONFIG, build().state_dict(), tokenizer=tokenizer_file)
    export_model(load_model(tmp_path / "final"), tmp_path / "exported")
    model = f"pretrained={tmp_path / 'exported'},trust_remote_code=True,max_length=1024"
    command = [
        "--model",
        "hf",
        "--model_args",
        model,
        "--tasks",
        "local_text",
        "--include_path",
        str(tmp_path),
        "--device",
        "cpu",
    ]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(tmp_path / "cache"),
        "HF_HOME": str(tmp_path / "home"),
    }
    subprocess.run(
        [sys.executable, "-m", "lm_eval", *command, "--output_path", str(tmp_path / "out")],
        check=True,
        env=environment,
        cwd=tmp_path,
    )
    (results,) = (tmp_path / "out").rglob("results*.json")
    theirs = json.loads(results.read_text())["results"]["local_text"]["bits_per_byte,none"]
    torch.set_num_threads(1)
    ours = measure_texts(load_model(tmp_path / "final"), (text,), 1024, 4).bits_per_byte
    assert theirs == pytest.approx(ours, rel=1e-5)
