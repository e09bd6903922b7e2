"""The workflows call targets of the Makefile, and nothing else that could go out of date."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_every_command_is_a_target_of_the_makefile(workflow):
    for command in commands(workflow):
        if command.startswith("sudo apt-get"):
            continue
        made = re.match(r"make ([\w-]+)", command)
        assert made, command
        assert made[1] in TARGETS, command


def test_there_are_workflows_for_all_that_must_hold():
    assert [path.stem for path in WORKFLOWS] == ["check", "docs", "test", "wheels"]


def test_the_tested_python_versions_are_those_of_the_metadata():
    matrix = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    tested = matrix["jobs"]["versions"]["strategy"]["matrix"]["python"]
    declared = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()
    )
    assert tested == declared


def test_the_oldest_tested_torch_is_the_oldest_supported():
    (oldest,) = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert f"TORCH_oldest := torch=={oldest}.*" in (ROOT / "Makefile").read_text()
